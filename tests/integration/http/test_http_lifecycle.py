"""A server from start to stop: what it refuses to start with, what it survives, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from bases import tiny_base
from onebert_store.errors import VersionNotFound, VersionUnavailable
from servers import LAYOUTS, Server, Task, assert_answers, clean_env, run_onebert, wait_until

TEXT, CLASSIFY = "the screen was broken", "/v1/tasks/task/classify"
SERVING = """
import signal
import sys
from pathlib import Path
from onebert_server.run.serving import serving

# A child inherits it that SIGHUP is ignored, as whoever runs the tests by nohup does.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with serving(Path(sys.argv[1]), base=sys.argv[2], dtype="float32", threads=1) as server:
    print(server.pid, flush=True)
    server.wait()
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A server, stopped and started again with two tasks; one blob was damaged in between."""
    tasks = {"kept": Task(seed=1), "canary": Task("lora", "cls", seed=2), "gone": Task(seed=3), "hurt": Task(seed=5)}
    with Server(tmp_path_factory.mktemp("stored")) as server:
        with server.client() as client:
            for name in ("kept", "canary", "gone"):
                client.push("kept", tasks[name].file)
            client.delete_version("kept", 3)
            client.move_alias("kept", "canary", 2, expected=None)
            tasks["before"] = client.task("kept")
            digest = client.push("hurt", tasks["hurt"].file)["digest"]
        assert server.stop() == 0
        blob = server.folder / "data" / "blobs" / digest.removeprefix("sha256:")
        blob.write_bytes(blob.read_bytes()[:-1] + b"\x55")
        server.start()
        yield server, tasks


def test_what_was_stored_is_served_again(stored):
    server, tasks = stored
    assert server.greeting.endswith("2 tasks\n")
    with server.client() as client:
        assert client.task("kept") == tasks["before"]
        assert_answers(client.classify("kept", TEXT)["results"][0], tasks["kept"].scores(TEXT))
        assert_answers(client.classify("kept@canary", TEXT)["results"][0], tasks["canary"].scores(TEXT))
        with pytest.raises(VersionNotFound):
            client.classify("kept@3", TEXT)
        assert client.push("kept", tasks["gone"].file)["version"] == 4


def _readiness(web, client):
    """How many versions /readyz counts as unavailable; it counts those in memory that say so themselves."""
    counts = web.get("/readyz").json()
    versions = [version for task in client.tasks() for version in client.task(task["name"])["versions"]]
    assert counts["resident"] == sum(version["status"] == "resident" for version in versions)
    return counts["unavailable"]


def test_a_damaged_blob_stops_one_version(stored):
    server, tasks = stored
    with server.client() as client, httpx.Client(base_url=server.url) as web:
        assert _readiness(web, client) == 1
        assert client.version("hurt", 1)["status"] == "unavailable"
        with pytest.raises(VersionUnavailable):
            client.classify("hurt", TEXT)
        assert [result["task"] for result in client.fanout(TEXT)] == ["kept"]
        assert client.push("hurt", tasks["hurt"].file)["version"] == 1
        assert_answers(client.classify("hurt", TEXT)["results"][0], tasks["hurt"].scores(TEXT))
        assert _readiness(web, client) == 0


def test_second_server_cannot_have_the_same_folder_or_port(stored, tmp_path):
    server, _ = stored
    port = urlsplit(server.url).port
    taken = run_onebert("serve", "--port", 0, base=tiny_base(), data_dir=server.folder / "data")
    _assert_refused(taken, "another process is using")
    _assert_refused(run_onebert("serve", "--port", port, base=tiny_base(), data_dir=tmp_path), "cannot be bound")


def test_versions_of_another_base_are_unavailable(stored):
    """Runs last on this server: it comes back with a base that fits none of its versions."""
    server, _ = stored
    assert server.stop(signal.SIGINT) == 0
    server.settings["base"] = tiny_base("electra")
    server.start()
    with server.client() as client:
        with pytest.raises(VersionUnavailable):
            client.classify("kept", TEXT)
        assert client.ready()


@pytest.mark.parametrize("front_ends", **LAYOUTS)
def test_request_in_flight_at_sigterm_is_answered(tmp_path, front_ends):
    """Half of its body was sent; the rest comes when the server no longer accepts connections."""
    task = Task(seed=7)
    body = json.dumps({"inputs": TEXT}).encode()
    with Server(tmp_path, front_ends=front_ends) as server:
        with server.client() as client:
            client.push("task", task.file)
        with server.begin("POST", CLASSIFY, body[:9], len(body)) as connection:
            wait_until(lambda: server.in_progress() == 2)
            server.process.send_signal(signal.SIGTERM)
            wait_until(server.refuses)
            connection.sendall(body[9:])
            answer = _read_all(connection)
        assert answer.startswith(b"HTTP/1.1 200")
        assert_answers(json.loads(answer.partition(b"\r\n\r\n")[2])["results"][0], task.scores(TEXT))
        assert server.wait() == 0


@pytest.mark.parametrize("front_ends", **LAYOUTS)
def test_a_request_that_never_comes_does_not_hold_the_stop(tmp_path, front_ends):
    settings = {"shutdown_timeout": 1, "front_ends": front_ends}
    with Server(tmp_path, **settings) as server, server.begin("POST", CLASSIFY, b"{", 100):
        wait_until(lambda: server.in_progress() == 2)
        assert server.stop() == 0
    lines = server.log.read_text().splitlines()
    assert lines[0].endswith(f"onebert.serve: loading {tiny_base()}")
    assert lines[-1].endswith("onebert.serve: stopped")


@pytest.mark.parametrize("front_ends", **LAYOUTS)
def test_signals_until_the_very_end_change_nothing(tmp_path, front_ends):
    with Server(tmp_path, front_ends=front_ends) as server:
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


@pytest.mark.parametrize("front_ends", **LAYOUTS)
def test_drain_loses_no_request(tmp_path, front_ends):
    """Clients go on until an answer tells them to leave the connection, as a load balancer does."""
    task = Task(seed=8)
    expected = task.scores(TEXT)
    with Server(tmp_path, drain_delay=2, front_ends=front_ends) as server:
        with server.client() as client:
            client.push("task", task.file)

        def ask(_):
            count = 0
            with httpx.Client(base_url=server.url, timeout=180) as web:
                while True:
                    answer = web.post(CLASSIFY, json={"inputs": TEXT})
                    assert_answers(answer.json()["results"][0], expected)
                    count += 1
                    if count == 5:
                        server.process.send_signal(signal.SIGTERM)
                    if answer.headers.get("connection") == "close":
                        return httpx.get(f"{server.url}/readyz")

        with ThreadPoolExecutor(6) as pool:
            for ready in pool.map(ask, range(6)):
                assert ready.status_code == 503
                assert ready.json()["code"] == "shutting-down"
                assert int(ready.headers["retry-after"]) > 0
        assert server.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "settings", "reason"),
    [
        (["--host", "0.0.0.0"], {}, "needs API keys"),
        ([], {"api_keys": "sha256:abc"}, "ONEBERT_API_KEYS"),
        (["--port", "70000"], {}, "ONEBERT_PORT"),
        (["--base", "/nowhere/at/all", "--port", "0"], {}, "base"),
    ],
    ids=str,
)
def test_what_it_refuses_to_start_with(tmp_path, arguments, settings, reason):
    _assert_refused(run_onebert("serve", *arguments, data_dir=tmp_path / "data", **settings), reason)
    assert not (tmp_path / "data").exists()


def _assert_refused(done, reason):
    assert done.returncode == 1
    assert done.stdout == ""
    # What is refused before anything is loaded comes without a word about loading.
    [error] = [line for line in done.stderr.splitlines() if "onebert.serve: loading" not in line]
    assert error.startswith("error: ")
    assert reason in error


def _read_all(connection):
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_program_that_is_ended_leaves_no_server_behind(tmp_path, by):
    command = [sys.executable, "-c", SERVING, tmp_path, tiny_base()]
    with subprocess.Popen(command, env=clean_env(), stdout=subprocess.PIPE, text=True) as program:
        server = int(program.stdout.readline())
        try:
            program.send_signal(by)
            assert program.wait(180) == 128 + by
            wait_until(lambda: not _is_there(server))
        finally:
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)


def _is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
