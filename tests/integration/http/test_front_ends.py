"""Front ends beside the engine's process: what they have seen decides nothing, and who dies takes nobody along."""

import asyncio
import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from cryptography.fernet import Fernet

from bases import tiny_base
from forked import Forked
from onebert_server.remote.unix import keeper as front_ends_of_server
from onebert_server.remote.unix.keeper import MAX_ENDS, FrontEnds
from onebert_server.settings import ServerSettings
from onebert_store.errors import InvalidInput, OneBertError, TaskNotFound
from runtimes import opened
from servers import Server, Task, assert_answers, children, clean_env, wait_until

KEY = "a-key-of-the-front-ends"
SETTINGS = {"api_keys": KEY, "front_ends": 2}
TEXT = "the screen was broken"
PAIR = ("what was broken", TEXT)
# Enough connections for each front end to get some.
MANY = 24


@pytest.fixture(scope="module")
def task(client):
    made = Task(seed=1)
    client.push("task", made.file)
    return made


def each(server, ask, count=MANY):
    """Asks over many connections, open at the same time."""
    with ExitStack() as clients, ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, [clients.enter_context(server.client(api_key=KEY)) for _ in range(count)]))


COUNTED = 'onebert_http_requests_total{method="POST",route="/v1/tasks/{task}/classify",status="200"} '


@pytest.mark.slow
def test_what_a_front_end_has_counted_outlives_it(server, task):
    """Nobody scrapes between their answers and their end."""
    before = server.metric(COUNTED)
    each(server, lambda web: web.classify("task", TEXT))
    each(server, lambda web: web.ready())  # what they had to say of the answers they have said
    gone = server.children()
    for pid in gone:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(server.children() - gone) == 2)
    assert server.metric(COUNTED) == before + MANY
    wait_until(lambda: server.in_progress() == 1)  # the one that asks


@pytest.mark.slow
def test_what_a_front_end_has_seen_decides_nothing(server, client):
    """A span task takes pairs alone, the version after it texts too; every front end has last seen the other."""
    client.push("turns", Task(labels=["start", "end"], task_type="span", pooling="none", seed=2).file)
    second = Task(seed=3)
    client.push("turns", second.file)
    for _ in range(2):
        for answer in each(server, lambda web: web.classify("turns", PAIR)):
            assert (answer["version"], len(answer["results"][0]["answers"])) == (1, 1)
        client.move_alias("turns", "live", 2, expected=1)
        for answer in each(server, lambda web: web.classify("turns", TEXT)):
            assert answer["version"] == 2
            assert_answers(answer["results"][0], second.scores(TEXT))
        client.move_alias("turns", "live", 1, expected=2)

        def refused(web):
            with pytest.raises(InvalidInput, match="turns@1 is a span task"):
                web.classify("turns", TEXT)

        each(server, refused)
    client.delete_alias("turns", "live", expected=1)
    client.delete_version("turns", 1)
    client.delete_version("turns", 2)

    def gone(web):
        with pytest.raises(TaskNotFound):
            web.classify("turns", PAIR)

    each(server, gone)


def test_signals_are_for_the_engines_process(server, client, task):
    """A service manager may send them to all."""
    before = server.children()
    for pid in before:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    for answer in each(server, lambda web: web.classify("task", TEXT)):
        assert_answers(answer["results"][0], task.scores(TEXT))
    assert server.children() == before
    assert len(before) == 2


def test_a_front_end_that_dies_is_replaced_and_the_others_answer(server, client, task):
    before = server.children()
    os.kill(min(before), signal.SIGKILL)
    # The engine's process and the other front end see to these, and to those that the dead one had not accepted.
    for answer in each(server, lambda web: web.classify("task", TEXT)):
        assert_answers(answer["results"][0], task.scores(TEXT))
    wait_until(lambda: len(server.children() - {min(before)}) == 2)
    assert "a front end ended with status -9" in server.log.read_text()
    os.kill(max(before), signal.SIGKILL)
    wait_until(lambda: max(before) not in server.children())
    # The one that was started since answers alone.
    with server.client(api_key=KEY) as web:
        assert_answers(web.classify("task", TEXT)["results"][0], task.scores(TEXT))


@pytest.mark.slow
def test_a_front_end_that_ends_again_and_again_ends_the_server(tmp_path):
    with Server(tmp_path, front_ends=1) as server:
        ended = []
        while len(ended) < MAX_ENDS:
            wait_until(lambda: not server.children() <= {*ended})
            [child] = server.children() - {*ended}
            os.kill(child, signal.SIGKILL)
            ended.append(child)
        assert server.wait() == 1
    assert server.log.read_text().splitlines()[-1] == "error: a front end ended with status -9, again and again"


def test_a_signal_while_front_ends_start_ends_it_quietly(tmp_path):
    settings = {"base": tiny_base(), "port": 0, "data_dir": tmp_path / "data", "front_ends": 2, "threads": 1}
    with (tmp_path / "log").open("w") as log:
        process = Forked("serve", env=clean_env(**settings), stdout=subprocess.PIPE, stderr=log)
    wait_until(lambda: children(process.pid))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=180)[0] == ""
    assert process.returncode == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert not children(process.pid)


def test_one_that_cannot_be_started_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(front_ends_of_server, "COMMAND", [str(tmp_path / "nothing-here")])

    async def start(runtime):
        fronts = FrontEnds(runtime, None)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            try:
                await fronts.start([listener])
            finally:
                await fronts.close()

    with opened(tmp_path, front_ends=1) as runtime, pytest.raises(OneBertError, match="could not be started"):
        asyncio.run(start(runtime))
    assert "a front end could not be started: No such file or directory" in caplog.text


# The first one listens, the next ones hang before they connect.
HANGS = """
import os, socket, sys, time
from onebert_server.remote import wire
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.channel import framed
start = wire.decoder(frames.Start)(os.pread(0, os.fstat(0).st_size, 0))
with socket.socket(socket.AF_UNIX) as engine:
    if not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close()
        engine.connect(start.engine)
        engine.sendall(framed(frames.Connected(os.getpid())) + framed(frames.Accepting()))
    time.sleep(600)
"""


def test_one_that_hangs_before_it_listens_is_killed(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(front_ends_of_server, "COMMAND", [sys.executable, "-c", HANGS, str(tmp_path / "one")])
    monkeypatch.setattr(front_ends_of_server, "RESTART_DELAY", 0.0)

    async def start(runtime):
        fronts = FrontEnds(runtime, None)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            try:
                await fronts.start([listener])
                monkeypatch.setattr(front_ends_of_server, "START_TIMEOUT", 0.1)
                [first] = fronts._processes
                os.kill(first, signal.SIGKILL)
                async with asyncio.timeout(120):
                    while fronts._processes.keys() <= {first}:
                        await asyncio.sleep(0.01)
                    monkeypatch.setattr(front_ends_of_server, "RESTART_DELAY", 600.0)
                    while fronts._processes:
                        await asyncio.sleep(0.01)
            finally:
                await fronts.close()

    with opened(tmp_path, front_ends=1) as runtime:
        asyncio.run(start(runtime))
    assert "does not listen" in caplog.text


def test_front_ends_end_with_the_engines_process(tmp_path):
    with Server(tmp_path, front_ends=2) as server:
        server.kill()
        wait_until(server.refuses)


def test_sockets_of_front_ends_are_for_them_alone(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        with Server(tmp_path, front_ends=1) as server:
            assert not [*Path(folder).iterdir()]
            names = re.findall(r"@(onebert-(?:engine|control)-\w+)$", Path("/proc/net/unix").read_text(), re.MULTILINE)
            assert len({*names}) >= 2
            for name in {*names}:
                with socket.socket(socket.AF_UNIX) as other, suppress(ConnectionError):
                    other.connect(f"\0{name}")
                    other.settimeout(60)
                    assert other.recv(1) == b""
            assert httpx.get(f"{server.url}/healthz").status_code == 200


def stopped(pid):
    """Whether a process stands still; one that has ended does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_engine_that_stands_still_keeps_nobody_waiting(tmp_path):
    """Its front end refuses who has no key, ends every other request at its own time, and says that all is not well."""
    task, texts = Task(seed=1), {"inputs": TEXT}
    routes = [
        ("POST", "/v1/tasks/task/classify", {"json": texts}),
        ("POST", "/v1/tasks/task/classify", {"json": texts | {"explain": True}}),
        ("POST", "/v1/fanout", {"json": {"text": TEXT, "tasks": ["*"]}}),
        ("POST", "/v1/moderations", {"json": {"model": "task", "input": TEXT}}),
        ("POST", "/t/task/predict", {"json": {"inputs": TEXT}}),
        ("GET", "/v1/tasks", {}),
        ("GET", "/v1/models", {}),
        ("GET", "/metrics", {}),
        ("GET", "/", {}),
        ("PUT", "/v1/tasks/task/aliases/live", {"json": {"version": 1}, "headers": {"If-Match": '"1"'}}),
        ("PUT", "/v1/tasks/other/versions", {"content": task.file}),
        ("DELETE", "/v1/tasks/task/versions/1", {}),
        ("POST", "/v1/feedback", {"json": {"data": []}}),
    ]
    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        Server(tmp_path, front_ends=1, api_keys=KEY) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=180) as web,
    ):
        server.push({"task": task})
        server.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: stopped(server.process.pid))
        try:
            for method, path, sent in routes:
                sent["headers"] = sent.get("headers", {}) | {"X-Request-Timeout": "0.2"}
                answer = web.request(method, path, **sent)
                assert (answer.status_code, answer.json().get("code", "deadline-exceeded")) == (
                    504,
                    "deadline-exceeded",
                ), path
            for path in ("/healthz", "/readyz"):
                answer = web.get(path)
                assert (answer.status_code, answer.json()["code"]) == (503, "unhealthy"), path
            for path in ("/v1/tasks", "/nowhere", "/metrics"):
                assert httpx.get(f"{server.url}{path}").json()["code"] == "unauthorized", path
            assert stopped(server.process.pid)
        finally:
            server.process.send_signal(signal.SIGCONT)
        wait_until(lambda: web.get("/readyz").status_code == 200)
        assert web.get("/v1/tasks").status_code == 200


def test_a_front_end_that_stands_still_is_replaced(tmp_path):
    with Server(tmp_path, front_ends=2) as server, ExitStack() as opened, ThreadPoolExecutor(MANY) as pool:
        server.push({"task": Task(seed=1)})
        content = json.dumps({"inputs": TEXT}).encode()
        fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        request = f"POST /v1/tasks/task/classify HTTP/1.1\r\n{fields}".encode() + content

        def ask(connection):
            """The status line's code, if the connection is not closed, and whether a front end stands meanwhile."""
            try:
                connection.sendall(request)
                code = connection.recv(2**16)[9:12]
            except ConnectionError:
                code = b""
            if not code:
                return code, False
            return code, any(map(stopped, server.children()))

        held = [opened.enter_context(server.connect()) for _ in range(MANY)]
        assert [*pool.map(ask, held)] == MANY * [(b"200", False)]
        # The one with most connections: it may have accepted all of them.
        gone = max(server.children(), key=lambda pid: len([*Path(f"/proc/{pid}/fd").iterdir()]))
        os.kill(gone, signal.SIGSTOP)
        wait_until(lambda: stopped(gone))
        asking = [pool.submit(ask, connection) for connection in held]
        with server.connect() as new:
            assert ask(new) == (b"200", True)
        answers = {future.result() for future in asking}
        assert (b"", False) in answers
        assert answers <= {(b"200", True), (b"", False)}
        wait_until(lambda: len(server.children() - {gone}) == 2)
    assert "a front end says nothing for 10 seconds, and is killed" in server.log.read_text()


def test_no_child_of_the_server_has_its_secrets(tmp_path, monkeypatch):
    """Of front ends, and of the trainer: their environment, arguments and open files, and the temporary folder."""
    given = {
        "api_keys": f"{KEY}-one",
        "samples_key": Fernet.generate_key().decode(),
        "webhook_url": "http://127.0.0.1:9/token-of-the-receiver",
        "webhook_key": f"whsec_{base64.b64encode(b'k' * 32).decode()}",
        "registry": f"sqlite:///{tmp_path}/password-of-the-database",
        "blobs": f"file://{tmp_path}/name-of-the-bucket",
        "trainer": "1",
    }
    settings = {name: value for name, value in given.items() if name in ServerSettings.model_fields}
    others = {"PGPASSWORD": "password-of-libpq", "AWS_SECRET_ACCESS_KEY": "key-of-the-bucket"}
    for name, value in (others | {"REQUESTS_CA_BUNDLE": "certificates-of-the-network"}).items():
        monkeypatch.setenv(name, value)
    secrets = [value.rpartition("/")[2].encode() for name, value in (settings | others).items() if name != "trainer"]
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        with Server(tmp_path, front_ends=2, **settings) as server:
            assert len(server.children()) == 2 + ("trainer" in settings)
            held = [path for path in Path(folder).rglob("*") if path.is_file()]
            for pid in server.children():
                process = Path("/proc", str(pid))
                assert b"certificates-of-the-network" in (process / "environ").read_bytes()
                open_files = [path for path in (process / "fd").iterdir() if path.is_file()]
                files = [path for path in open_files if not path.samefile(server.log)]
                held += [process / "environ", process / "cmdline", *files]
            assert [(path, secret) for path in held for secret in secrets if secret in path.read_bytes()] == []
            places = {settings[name].rpartition("/")[2].encode() for name in ("registry", "blobs")}
            assert not [secret for secret in secrets if secret not in places and secret in server.log.read_bytes()]
