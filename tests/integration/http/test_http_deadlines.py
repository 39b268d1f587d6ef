"""Deadlines, and clients who leave: a whole app in this process, whose engine can be held up."""

import asyncio
import gc
import json
import re
import time
from contextlib import asynccontextmanager
from threading import Event

from loops import Clock
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.principal import root
from onebert_server.engine import host as host_module
from onebert_server.http.body import RECEIVE_TIMEOUT
from onebert_server.run.app import create_app
from onebert_server.runtime import MAX_FAILED_IN_A_ROW
from onebert_server.versions.version import State
from runtimes import client, opened
from servers import Task, store

LOOP = Clock
CLASSIFY, BODY = "/v1/tasks/task/classify", {"inputs": ["it is late"] * 3}


class Held:
    """A running app with one task, and its engine's thread, which does nothing from `hold` until `release`."""

    def __init__(self, runtime, web):
        self.runtime, self.web = runtime, web
        self.entered, self.opened = Event(), Event()

    async def hold(self, end=None):
        """Holds the thread in what is called with an answer; `end` is raised there when it is released."""

        def answered(_):
            self.entered.set()
            self.opened.wait()
            if end is not None:
                raise end

        [resident] = self.runtime.directory.pin(["task"], root("test"))
        host, number = resident.slot
        future = self.runtime.engine.ask(host, [Tokens([5], [0])], number)
        future.add_done_callback(answered)
        await asyncio.to_thread(self.entered.wait)

    async def ask(self, **headers):
        return await self.web.post(CLASSIFY, json=BODY, headers=headers)

    async def metrics(self):
        return (await self.web.get("/metrics")).text

    async def wait_for_work(self, sequences):
        async with asyncio.timeout(60):
            while self.runtime.engine.queue.sequences != sequences:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def lived(tmp_path, **settings):
    """The app's life."""
    store(tmp_path, task=[Task(seed=seed) for seed in range(3)])
    with opened(tmp_path, **settings) as runtime:
        async with client(runtime, timeout=180) as web:
            held = Held(runtime, web)
            try:
                yield held
            finally:
                held.opened.set()


async def test_an_answer_that_is_late_is_504_and_its_work_is_dropped(tmp_path):
    async with lived(tmp_path) as held:
        await held.hold()
        answer = await held.ask(**{"X-Request-Timeout": "0.05"})
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline-exceeded")
        await held.wait_for_work(0)
        held.opened.set()
        assert (await held.ask()).status_code == 200
        metrics = await held.metrics()
        assert 'onebert_dropped_total{why="deadline"} 1.0' in metrics
        # Its client is still there.
        assert 'onebert_left_sequences_total{state="waiting"} 0.0' in metrics
        held.runtime.engine.close(60)
        closed = await held.ask()
        assert (closed.status_code, closed.json()["code"]) == (503, "shutting-down")


async def test_who_leaves_is_no_longer_worked_for(tmp_path):
    """Their waiting work is gone while the batch before it still runs, and is never computed."""
    start = time.monotonic()
    async with lived(tmp_path) as held:
        await held.hold()
        left = asyncio.Event()
        asking = asyncio.create_task(_ask_and_leave(create_app(held.runtime), left, CLASSIFY, BODY))
        await held.wait_for_work(3)
        left.set()
        await held.wait_for_work(0)
        await asking
        held.opened.set()
        assert (await held.ask()).status_code == 200
        metrics = await held.metrics()
        assert 'onebert_dropped_total{why="left"} 1.0' in metrics
        assert 'onebert_left_sequences_total{state="waiting"} 3.0' in metrics
        assert 'onebert_left_sequences_total{state="running"} 0.0' in metrics
        assert 'status="499"' in metrics
        # Of the upload's proof, the batch that held the engine, and the last question.
        assert "onebert_queue_wait_seconds_count 3.0" in metrics
        [waited] = re.findall(r"^onebert_queue_wait_seconds_sum (\S+)$", metrics, re.MULTILINE)
        # None of the three can have waited since before the server was there.
        assert float(waited) < 3 * (time.monotonic() - start)


async def test_who_leaves_or_is_late_while_versions_load_leaves_no_error_in_the_log(tmp_path, caplog):
    """Whichever way a question has to a version: its futures end after it, and nobody reads them."""
    versions = ["task@2", "task@3"]
    items, texts = [{"task": version, "text": "late"} for version in versions], {"inputs": "late"}
    ways = {
        "/v1/tasks/task@2/classify": texts,
        "/v1/classify": {"items": items},
        "/v1/classify ": {"items": items, "partial": True},
        "/v1/fanout": {"text": "late", "tasks": versions},
        "/v1/tasks/task@2/explain": texts,
        "/t/task@2/predict": texts,
        "/v1/feedback": {"data": [{"task": "task@2", "text": "late", "label": "label 0"}]},
    }
    async with lived(tmp_path) as held:
        app, left = create_app(held.runtime), asyncio.Event()
        loading = [held.runtime.directory.version("task", number) for number in (2, 3)]
        await held.hold()
        left.set()
        for path, body in ways.items():
            for fields in ({}, {"X-Request-Timeout": "0.05"}, {"OneBERT-Min-Seq": "99"}):
                await _ask_and_leave(app, left, path.strip(), body, fields)
        assert {version.state for version in loading} == {State.LOADING}
        held.opened.set()
        async with asyncio.timeout(60):
            while State.LOADING in {version.state for version in loading}:
                await asyncio.sleep(0.001)
        gc.collect()
        await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_an_upload_that_never_ends_is_ended_and_leaves_nothing(tmp_path):
    async with lived(tmp_path) as held:
        before = {*tmp_path.rglob("*")}

        async def body():
            yield Task(seed=4).file[:100]
            asyncio.get_running_loop().moved += RECEIVE_TIMEOUT
            await asyncio.Event().wait()

        octets = {"Content-Type": "application/octet-stream"}
        answer = await held.web.put("/v1/tasks/slow/versions", content=body(), headers=octets)
        assert (answer.status_code, answer.json()["code"]) == (408, "request-timeout")
        assert {*tmp_path.rglob("*")} == before


async def test_a_full_queue_refuses_before_the_body_is_read(tmp_path):
    async with lived(tmp_path, max_queue_seconds=1e-9) as held:
        await held.hold()
        asking = asyncio.create_task(held.ask())
        await held.wait_for_work(3)
        refused = await held.web.post(CLASSIFY, content=b"{", headers={"Content-Type": "application/json"})
        assert (refused.status_code, refused.json()["code"]) == (503, "queue-full")
        assert int(refused.headers["retry-after"]) >= 1
        assert 'onebert_rejected_total{code="queue-full"} 1.0' in await held.metrics()
        held.opened.set()
        assert (await asking).status_code == 200
        malformed = await held.web.post(CLASSIFY, content=b"{", headers={"Content-Type": "application/json"})
        assert malformed.status_code == 400


async def test_health_fails_while_a_pass_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("onebert_server.runtime.PASS_TIMEOUT", 0.05)
    async with lived(tmp_path) as held:
        assert (await held.web.get("/healthz")).status_code == 200
        await held.hold()
        for path in ("/healthz", "/readyz"):
            async with asyncio.timeout(60):
                while (answer := await held.web.get(path)).status_code == 200:
                    pass
            assert (answer.status_code, answer.json()["code"]) == (503, "unhealthy")
        held.opened.set()
        async with asyncio.timeout(60):
            while (await held.web.get("/healthz")).status_code != 200:
                pass
        assert (await held.web.get("/readyz")).status_code == 200


async def test_health_fails_when_the_engines_thread_is_dead(tmp_path):
    async with lived(tmp_path) as held:
        await held.hold(end=SystemExit)
        asking = asyncio.create_task(held.ask())
        await held.wait_for_work(3)
        held.opened.set()
        assert (await asking).json()["code"] == "engine-failed"
        async with asyncio.timeout(60):
            while (answer := await held.web.get("/healthz")).status_code == 200:
                pass
        assert (answer.status_code, answer.json()["code"]) == (503, "unhealthy")
        assert (await held.ask()).json()["code"] == "engine-failed"


async def test_health_fails_when_every_pass_fails(tmp_path, monkeypatch):
    async with lived(tmp_path) as held:
        [host] = held.runtime.engine.hosts.values()

        def broken(*_):
            raise RuntimeError("the device failed")

        async def fail(times):
            with monkeypatch.context() as device:
                device.setattr(host.passes, "launch", broken)
                device.setattr(host_module, "encode", broken)
                for _ in range(times):
                    answer = await held.ask()
                    assert (answer.status_code, answer.json()["code"]) == (500, "engine-failed")

        for _ in range(2):
            await fail(MAX_FAILED_IN_A_ROW - 1)
            assert (await held.web.get("/healthz")).status_code == 200
            assert (await held.ask()).status_code == 200
        await fail(MAX_FAILED_IN_A_ROW)
        for path in ("/healthz", "/readyz"):
            answer = await held.web.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "unhealthy")
        assert (await held.ask()).status_code == 200
        async with asyncio.timeout(60):
            while (await held.web.get("/healthz")).status_code != 200:
                pass


async def _ask_and_leave(app, left, path, body, fields=()):
    """One request as a server that speaks ASGI passes it on, from a client that closes its connection."""
    body = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive():
        if body:
            return body.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers += [(name.lower().encode(), fields[name].encode()) for name in fields]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    scope |= {"http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("localhost", 80)}
    await app(scope, receive, send)
