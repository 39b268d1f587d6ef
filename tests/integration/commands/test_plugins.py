"""Packages that plug in a façade, a command, a blob store, a redactor and a transport, used by the installed program.

docs/guide/plugins.md has the contracts that it keeps.
"""

import subprocess

import httpx
import pytest
from cryptography.fernet import Fernet

from bases import tiny_base
from onebert_store.blobs.staging import digest_of
from onebert_store.registry.dialects.sqlite import SqliteDatabase
from onebert_store.samples.store import open_samples
from plugin_packages import write_package
from servers import ONEBERT, Server, Task, clean_env, wait_until
from stores import feedback_of

FACADE = '''
from onebert_server.answering.gateway import Wanted
from onebert_server.facades.facade import Facade, Listing, Question, json_reply
from onebert_server.facades.facade import predicted
from onebert_server.http.schemas.common import RequestBody

class Ask(RequestBody):
    """A text."""

    text: str

async def best(call):
    ref = call.task()
    [label] = await call.ask(Wanted([ref]), [call.body.text], lambda _, one: predicted(one).label)
    return json_reply({"label": label})

async def labels(look):
    """The labels of a task."""
    version = await look.version()
    return json_reply({"labels": version.known_facts.labels})

def worded(fault):
    return fault.status, {"sorry": fault.sentence}

FACADE = Facade("Best", worded, [Question("/best", Ask, best)], [Listing("/best/labels", labels)])
'''

COMMAND = '''
from onebert_store.errors import InvalidInput

def greet(name: str = "you") -> None:
    """Greet somebody."""
    if not name:
        raise InvalidInput("nobody is there")
    print(f"hello {name}")
'''

REDACTOR = """
def shout(text):
    return text.upper()
"""

BLOBS = '''
from datetime import UTC, datetime
from pathlib import Path

from onebert_store.blobs.staging import digest_of
from onebert_store.blobs.staging import BlobInfo
from onebert_store.blobs.store import BlobStore
from onebert_store.errors import StoreCorrupt
from onebert_store.file.format import MAX_FILE_BYTES

class Boxes(BlobStore):
    """Each blob in a file BOX/DIGEST.box."""

    def __init__(self, box, staging):
        staging.mkdir(parents=True, exist_ok=True)
        super().__init__(staging, MAX_FILE_BYTES)
        self._box = box

    def put(self, data):
        digest = digest_of(data)
        self._path(digest).write_bytes(data)
        return digest

    def get_local(self, digest):
        return self.get(digest)

    def delete(self, digest):
        self._path(digest).unlink(missing_ok=True)

    def sync(self):
        pass

    def blobs(self):
        for path in self._box.glob("*.box"):
            found = path.stat()
            yield BlobInfo(path.stem, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def _commit(self, staged, digest):
        self.put(staged.read_bytes())

    def _unverified(self, digest):
        if not self._path(digest).exists():
            raise StoreCorrupt("the box lacks it")
        yield self._path(digest).read_bytes()

    def _path(self, digest):
        return self._box / f"{digest}.box"

def open_boxes(address, may_make):
    box = Path(address.blobs.removeprefix("box:"))
    if may_make:
        box.mkdir(exist_ok=True)
    return Boxes(box, address.folder / "staging")
'''

TRANSPORT = '''
"""Over TCP: a connection for all blocks, and one for each other message; bodies and answers pass whole."""

import asyncio
import multiprocessing
import signal
from functools import partial

import msgspec

from onebert_server.remote import wire
from onebert_server.remote.edge import RemoteEdge
from onebert_server.remote.relayed import Relayed
from onebert_server.remote.setup import setup_of
from onebert_server.remote.unix.channel import framed, read_frame
from onebert_server.run.front_end import FrontEnd
from onebert_server.run.serve import bind
from onebert_server.telemetry.metrics import Metrics
from onebert_server.telemetry.telemetry import open_telemetry
from onebert_store.errors import OneBertError, ShuttingDown

class KeysWanted(msgspec.Struct, tag=True, array_like=True):
    """From a front end: send the keys."""

class Blocks(msgspec.Struct, tag=True, array_like=True):
    """From a front end: this connection is for its blocks."""

from_front_end = wire.decoder(wire.Resolve | wire.ToGateway | wire.Request | wire.Part | Blocks | KeysWanted)
from_engine = wire.decoder(wire.Versions | wire.Refused | wire.Ended | wire.Keys | wire.Relayed)

class Tcp:
    full = False

    def __init__(self, port):
        self._port = port

    async def listen(self, keys):
        async def look():
            [found] = await self._call(KeysWanted())
            wire.exchange(keys, found)

        async def keep_looking():
            while True:
                await asyncio.sleep(0.1)
                try:
                    await look()
                except OneBertError:
                    pass

        await look()
        self._looking = asyncio.create_task(keep_looking())
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._send(Blocks())
        self._receiving = asyncio.create_task(self._receive(reader))

    async def _receive(self, reader):
        while (ended := await read_frame(reader, from_engine)) is not None:
            self.ended(ended)

    def _send(self, message):
        self._writer.write(framed(message))

    def keep(self, samples):
        pass

    async def resolve(self, question):
        [reply] = await self._call(question)
        return reply

    def submit(self, block):
        self._send(block)

    def withdraw(self, numbers):
        self._send(wire.Withdraw([*numbers]))

    def computed(self, questions):
        self._send(wire.Shadowed(questions))

    async def relay(self, request, body):
        part = wire.Part(await body.read(), more=False)
        async with asyncio.timeout(request.remaining):
            replies = await self._call(request, part)
        for reply in replies:
            yield reply

    async def _call(self, *messages):
        replies = []
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            raise ShuttingDown("the engine is gone") from None
        try:
            writer.write(b"".join(map(framed, messages)))
            while (reply := await read_frame(reader, from_engine)) is not None:
                replies.append(reply)
        finally:
            writer.close()
        if not replies:
            raise ShuttingDown("the engine is gone")
        return replies

def run_front_end(settings, setup, port, listeners):
    with open_telemetry(settings) as telemetry:
        FrontEnd(setup, Tcp(port), settings, Metrics(), telemetry).run(sockets=listeners)

async def answered(runtime, relayed, edge, asked, part):
    match asked:
        case wire.Resolve():
            return [await edge.resolve(asked)]
        case wire.Request():
            *head, answer = await relayed.whole(asked, part.body)
            return [*head, wire.Part(answer, more=False)]
        case KeysWanted():
            return [wire.keys(runtime.keys)]

def edge_of(admission, connected):
    """The edge of the only front end, whose connection for blocks is the future `connected`."""
    return RemoteEdge(admission, lambda ended: connected.result().write(framed(ended)))

async def serve_one(runtime, relayed, edge, connected, reader, writer):
    asked = await read_frame(reader, from_front_end)
    if isinstance(asked, Blocks):
        connected.set_result(writer)
        while (message := await read_frame(reader, from_front_end)) is not None:
            edge.take(message)
        return
    part = await read_frame(reader, from_front_end) if isinstance(asked, wire.Request) else None
    answering = asyncio.create_task(answered(runtime, relayed, edge, asked, part))
    # A front end that hangs up has cancelled its message.
    asyncio.create_task(reader.read()).add_done_callback(lambda _: answering.cancel())
    try:
        writer.write(b"".join(map(framed, await answering)))
    finally:
        writer.close()

async def serve_until_stopped(settings, port):
    # Front ends import this module without torch.
    from onebert_server.progress import Progress
    from onebert_server.run.app import create_app
    from onebert_server.run.opening import open_runtime

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    [listener] = listeners = bind(settings.host, settings.port)
    with open_runtime(settings, Progress()) as runtime:
        setup, app = setup_of(runtime.admission.splitters), create_app(runtime)
        connected = asyncio.get_running_loop().create_future()
        edge = edge_of(runtime.admission, connected)
        serving = partial(serve_one, runtime, Relayed(app.control, app.form_of, settings), edge, connected)
        async with await asyncio.start_server(serving, "127.0.0.1", port) as engine:
            port = engine.sockets[0].getsockname()[1]
            arguments = settings, setup, port, listeners
            front_end = multiprocessing.get_context("spawn").Process(target=run_front_end, args=arguments)
            front_end.start()
            listener.listen()
            print(f"Listening on http://127.0.0.1:{listener.getsockname()[1]}: by TCP", flush=True)
            await stop.wait()
            front_end.terminate()
            await asyncio.to_thread(front_end.join)

def serve(settings, address, options):
    asyncio.run(serve_until_stopped(settings, int(address)))
'''

ROOT, APP = "root-key-of-sixteen", {"name": "app", "scopes": ["classify"], "tasks": ["*"]}

GROUPS = {
    "onebert.facades": {"best": "their_facade:FACADE"},
    "onebert.commands": {"greet": "their_command:greet"},
    "onebert.blobs": {"box": "their_blobs:open_boxes"},
    "onebert.redactors": {"shout": "their_redactor:shout"},
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment variables by which a program finds the package."""
    modules = {"their_facade": FACADE, "their_command": COMMAND, "their_blobs": BLOBS, "their_redactor": REDACTOR}
    return {"PYTHONPATH": str(write_package(tmp_path_factory.mktemp("package"), "theirs", GROUPS, **modules))}


def run(*arguments, env, **settings):
    return subprocess.run(
        [ONEBERT, *arguments], env=clean_env(**settings) | env, capture_output=True, text=True, check=False
    )


def test_a_command_runs_beside_the_others(installed):
    assert run("greet", "--name", "Ann", env=installed).stdout == "hello Ann\n"
    failed = run("greet", "--name", "", env=installed)
    assert (failed.returncode, failed.stdout, failed.stderr) == (1, "", "error: nobody is there\n")
    assert "Greet somebody." in run("--help", env=installed).stdout


class Plugged(Server):
    """The installed program with a package."""

    def __init__(self, folder, package, *options, **settings):
        self._package, self._options = package, options
        super().__init__(folder, **settings)

    def launch(self, env, **options):
        return subprocess.Popen([ONEBERT, "serve", *self._options], env=env | self._package, text=True, **options)


@pytest.mark.slow
def test_a_server_answers_by_its_facade_and_keeps_files_in_its_blob_store(installed, tmp_path):
    """Behind a front end, which asks the façade's question; the engine's process answers the listing."""

    task, box = Task(seed=1), tmp_path / "box"
    key = Fernet.generate_key().decode()
    settings = {"blobs": f"box:{box}", "front_ends": 1, "samples_key": key, "redactor": "shout"}
    with Plugged(tmp_path, installed, **settings) as server, httpx.Client(timeout=180) as web:
        web.base_url = server.url
        server.push({"tone": task})
        text = "please help, my order is late"
        scores = task.scores(text)
        answer = web.post("/t/tone/best", json={"text": text})
        assert (answer.status_code, answer.json()) == (200, {"label": max(scores, key=scores.get)})
        assert web.get("/t/tone/best/labels").json() == {"labels": task.manifest["labels"]}
        failed = web.post("/best", json={"text": text})
        assert (failed.status_code, failed.json().keys()) == (422, {"sorry"})
        assert web.get("/openapi.json").json()["paths"]["/best"]["post"]["tags"] == ["Best"]
        assert 'route="/t/{task}/best"' in web.get("/metrics").text
        assert web.get("/v1/tasks/tone/versions/1/delta").content == task.file
        given = {"task": "tone", "text": text, "label": "label 0"}
        web.put("/v1/tasks/tone/samples", json={"share": 1.0})
        assert web.post("/v1/feedback", json={"data": [given]}).json()["data"][0]["text_kept"]
    with open_samples(SqliteDatabase(tmp_path / "data/registry.sqlite3"), [key]) as samples:
        assert [one.texts for one in feedback_of(samples, "tone")] == [(text.upper(),)]
    digest = digest_of(task.file)
    assert {path.name: path.read_bytes() for path in box.iterdir()} == {f"{digest}.box": task.file}
    kept = {"data_dir": tmp_path / "data", "blobs": f"box:{box}"}
    assert run("store", "check", env=installed, **kept).returncode == 0
    (box / f"{digest}.box").unlink()
    assert run("store", "check", env=installed, **kept).returncode == 1


@pytest.mark.slow
def test_a_front_end_answers_over_a_transport_as_one_process_does(tmp_path):
    """The package takes the place of onebert-ray, which has the only name of the group."""
    groups = {"onebert.transports": {"ray": "their_transport:serve"}}
    folder = write_package(tmp_path / "package", "onebert_ray", groups, their_transport=TRANSPORT)
    package, question = {"PYTHONPATH": str(folder)}, {"inputs": "please help, my order is late"}

    def answers(server, key):
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": "an-id"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=180) as web:
            asked = [web.post(f"/v1/tasks/{task}/classify", json=question) for task in ("tone", "none")]
            asked += [web.get(f"/v1/tasks/tone/versions/{version}") for version in (1, 2)]
            return [(one.status_code, one.content) for one in asked]

    with Plugged(tmp_path, package, "--ray", "0", api_keys=ROOT) as server:
        server.push({"tone": Task(seed=1)})
        with server.client(api_key=ROOT) as client:
            key = client.send("POST", "/v1/keys", json=APP).json()["key"]
        # A front end takes the keys of the registry as the engine's process makes them.
        wait_until(lambda: answers(server, key)[0][0] == 200)
        theirs = answers(server, key)
    with Server(tmp_path, api_keys=ROOT) as server:
        assert answers(server, key) == theirs
    assert [status for status, _ in theirs] == [200, 404, 200, 404]


def test_a_server_with_a_facade_that_cannot_be_loaded_says_one_line(tmp_path):
    folder = write_package(tmp_path / "package", "theirs", {"onebert.facades": {"gone": "no_such_module:FACADE"}})
    settings = {"base": tiny_base(), "dtype": "float32", "port": 0, "data_dir": tmp_path / "data", "log_level": "error"}
    done = run("serve", env={"PYTHONPATH": str(folder)}, **settings)
    reason = "ModuleNotFoundError: No module named 'no_such_module'"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: the façade 'gone' is unavailable: {reason}\n"
