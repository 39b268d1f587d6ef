"""What all tests share: one compute thread, no Hub, hypothesis without deadlines, and the command."""

import os

# The bases here are tiny, so a second compute thread only waits for the first; set before torch is imported, and
# inherited by the servers that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import lesser

if processor := os.environ.get("PROCESSOR"):
    lesser.become(processor)

import asyncio
import inspect
import sys
import uuid

import httpx
import pytest
import torch
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# Without a GPU its kernels run in Triton's interpreter; Triton looks for this when it is imported, by whomever.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Where a developer has traces collected, tests are not among them.
for name in [name for name in os.environ if name.startswith("OTEL_")]:
    del os.environ[name]

# Shared machines stall; a property is not false because it was slow. `--hypothesis-profile all` draws every example.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("all", deadline=None, max_examples=100)
settings.load_profile("quick")


def pytest_configure(config):
    config.pluginmanager.register(AtOnce(config))


class AtOnce:
    """Names a test when it fails; pytest itself does at the end, which a run that is ended does not reach."""

    def __init__(self, config):
        self._config = config

    def pytest_runtest_logreport(self, report):
        if report.failed and (terminal := self._config.pluginmanager.get_plugin("terminalreporter")):
            terminal.write_line(f"\n{report.nodeid} failed at {report.when} after {report.duration:.0f} s")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs an `async def` test on an event loop of its own, of the file's `LOOP` where it has one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run():
        async with asyncio.timeout(300):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})

    with asyncio.Runner(loop_factory=getattr(pyfuncitem.module, "LOOP", None)) as runner:
        runner.run(run())
    return True


class ByServer(LoadScopeScheduling):
    """Hands whole files to workers, and at once all files that share the servers of one fixture of the session."""

    SHARING = "tests/integration/facades/"

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return f"{self.SHARING} {'front ends' in nodeid}" if file.startswith(self.SHARING) else file


def pytest_xdist_make_scheduler(config, log):
    return ByServer(config, log)


@pytest.fixture
def two_threads():
    """Two compute threads for a test: some mistakes need company."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def onebert(monkeypatch, capsys):
    """Runs one command in this process: exit status, standard output, standard error."""
    from onebert_store.command.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["onebert", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture(scope="module", params=[0], ids=["one process"])
def server(request, tmp_path_factory):
    """A real server for each file that asks for one, with the file's `SETTINGS` and the tasks that it has `STORED`.

    In one process, unless a test or its file is marked with `layouts` of servers.py.
    """
    from servers import Server, store

    folder, settings = tmp_path_factory.mktemp("server"), getattr(request.module, "SETTINGS", {})
    if stored := getattr(request.module, "STORED", {}):
        store(folder / "data", **stored)
    with Server(folder, **{"front_ends": request.param} | settings) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


@pytest.fixture(scope="module")
def client(server):
    """Sends the server's own key, where it has one."""
    with server.client(api_key=server.settings.get("api_keys")) as made:
        yield made


@pytest.fixture(scope="module")
def web(server):
    """Sends what a test says and nothing else, no key either."""
    with httpx.Client(base_url=server.url, timeout=180) as made:
        yield made


@pytest.fixture(scope="session")
def postgres():
    """A running PostgreSQL."""
    from postgres_server import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres):
    """The URL of an empty database of this test's own."""
    name = postgres.create()
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """A store that is not there yet, on each kind of database; its blobs are in `tmp_path / "store" / "blobs"`."""
    from onebert_store.registry.store import StoreAddress

    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    return StoreAddress.within(tmp_path / "store", url)


@pytest.fixture(params=["sqlite", "postgresql"])
def replicas(request, tmp_path, monkeypatch):
    """Two, which show of each other's changes only what a request asks for."""
    from replicas import deaf_replicas

    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    with deaf_replicas(tmp_path, url, monkeypatch) as pair:
        yield pair


@pytest.fixture
def proxy(postgres, postgres_url):
    """A network in front of an empty database: a TcpProxy whose `url` has a password, and is of little patience."""
    import socket

    from tcp_proxy import TcpProxy

    def connect():
        server = socket.socket(socket.AF_UNIX)
        server.connect(postgres.socket)
        return server

    database = postgres_url.partition("?")[0].rpartition("/")[2]
    with TcpProxy(connect) as proxy:
        address = f"postgresql://postgres:s3cret-word@127.0.0.1:{proxy.port}/{database}"
        # A server that says nothing for half a second counts as gone.
        proxy.url = f"{address}?tcp_user_timeout=500&connect_timeout=2"
        yield proxy


@pytest.fixture(scope="session")
def object_server(tmp_path_factory):
    """A real S3 server with a bucket, one for each process of pytest that needs it."""
    from object_server import ObjectServer

    with ObjectServer(tmp_path_factory.mktemp("object-server")) as server:
        yield server


@pytest.fixture
def bucket_prefix(object_server, monkeypatch):
    """A prefix of the bucket that nobody else has; the environment says how to reach it."""
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    return uuid.uuid4().hex


@pytest.fixture
def bucket_url(bucket_prefix):
    """The address of an empty place for blobs in a bucket."""
    return f"s3://models/{bucket_prefix}"
