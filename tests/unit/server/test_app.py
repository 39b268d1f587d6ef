"""A whole replica in this process, where its threads can be held up: what must not wait for them, and how it ends."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from threading import Event

import httpx

from onebert_encoder.text.tokens import Tokens
from onebert_server.run import opening
from onebert_server.run.app import create_app
from onebert_server.run.opening import REGISTRARS
from onebert_server.telemetry.metrics import Metrics
from onebert_server.versions.version import State
from runtimes import client, opened
from servers import Task, store

UPLOAD = "http://localhost/v1/tasks/task/versions"
HEADERS = {"Content-Type": "application/octet-stream"}


@contextmanager
def held_device(runtime, monkeypatch):
    """The engine's thread computes nothing more until the event is set, or the block ends; `task` has to be live."""
    entered, goes_on = Event(), Event()

    def hold(*_):
        entered.set()
        goes_on.wait()

    monkeypatch.setattr(Metrics, "observe_batch", hold)
    host, number = runtime.directory.version("task", 1).slot
    runtime.engine.compute(host, [Tokens([5], [0])], number)
    assert entered.wait(180)
    try:
        yield goes_on
    finally:
        goes_on.set()


def upload_while_the_uploader_does_nothing(runtime, files, until, address=lambda number: "127.0.0.1"):
    """Uploads all files at once; `until` is asked again and again, then the uploader goes on.

    `address` says for the number of a file where it comes from; without keys that is the principal.
    """
    held = Event()
    runtime.uploader.submit(held.wait)
    app = create_app(runtime)

    async def put(number, file):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(address(number), 9))) as web:
            return await web.put(UPLOAD, content=file, headers=HEADERS)

    async def live():
        puts = asyncio.gather(*(put(number, file) for number, file in enumerate(files)))
        try:
            async with asyncio.timeout(120):
                while not until():
                    await asyncio.sleep(0)
        finally:
            held.set()
        return await puts

    return asyncio.run(live())


def test_an_upload_does_not_wait_for_all_of_somebody_else(tmp_path):
    """The last of nine comes from another address; it is taken in that principal's turn, and not the last."""
    files = [Task(seed=seed).file for seed in range(9)]
    asked = count()

    def all_wait():
        # They are whole; after so many turns of the event loop it has also seen that they are.
        whole = sum(path.stat().st_size > 0 for path in (tmp_path / "blobs").iterdir()) == len(files)
        return whole and next(asked) > 1000

    with opened(tmp_path) as runtime:
        address = lambda number: "192.0.2.2" if number == 8 else "192.0.2.1"  # noqa: E731
        answers = upload_while_the_uploader_does_nothing(runtime, files, all_wait, address)
    # Two, where the first of the others had the turn before it came.
    assert answers[8].json()["version"] <= 3


def test_aliases_that_wait_for_their_versions_hold_no_thread_that_others_need(tmp_path, monkeypatch):
    """More aliases than there are registrars wait for the device; a list of tasks needs a registrar and has it."""
    count = REGISTRARS + 1
    store(tmp_path, task=[Task(seed=seed) for seed in range(count + 1)])

    def all_load(runtime):
        versions = runtime.directory.task("task").versions.values()
        return sum(one.state is State.LOADING for one in versions) >= REGISTRARS

    async def live(runtime, goes_on):
        async with client(runtime) as web:
            urls = [(f"/v1/tasks/task/aliases/a{number}", number) for number in range(2, count + 2)]
            new = {"If-None-Match": "*"}
            moves = asyncio.gather(*(web.put(url, json={"version": number}, headers=new) for url, number in urls))
            try:
                async with asyncio.timeout(30):
                    while not all_load(runtime):
                        await asyncio.sleep(0)
                    listed = await web.get("/v1/tasks")
                    waited = not moves.done()
            finally:
                goes_on.set()
            return listed, waited, await moves

    with opened(tmp_path) as runtime, held_device(runtime, monkeypatch) as goes_on:
        listed, waited, moved = asyncio.run(live(runtime, goes_on))
    assert listed.json()["tasks"][0]["aliases"] == {"live": 1}
    assert waited
    assert [answer.status_code for answer in moved] == [200] * count


def test_an_alias_whose_version_is_not_loaded_in_time_stays_where_it_is(tmp_path, monkeypatch):
    store(tmp_path, task=[Task(seed=seed) for seed in range(2)])

    async def move(runtime):
        headers = {"If-Match": '"1"', "X-Request-Timeout": "0.1"}
        async with client(runtime) as web:
            return await web.put("/v1/tasks/task/aliases/live", json={"version": 2}, headers=headers)

    with opened(tmp_path) as runtime, held_device(runtime, monkeypatch):
        refused = asyncio.run(move(runtime))
        assert (refused.status_code, refused.json()["code"]) == (504, "deadline-exceeded")
        assert runtime.directory.task("task").aliases["live"].version == 1


def test_a_batch_that_hangs_does_not_hold_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "CLOSE_TIMEOUT", 0.1)
    store(tmp_path, task=Task())

    def live(device):
        with opened(tmp_path, dtype="auto", shutdown_timeout=10_000.0) as runtime:
            device.enter_context(held_device(runtime, monkeypatch))

    with ThreadPoolExecutor(1) as thread, ExitStack() as device:
        thread.submit(live, device).result(180)
