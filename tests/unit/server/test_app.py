"""A whole replica in this process, where its threads can be held up: what must not wait for them, and how it ends."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event

from onebert_encoder.text.tokens import Tokens
from onebert_server.run import opening
from onebert_server.run.opening import REGISTRARS
from onebert_server.telemetry.metrics import Metrics
from onebert_server.versions.version import State
from runtimes import client, opened
from servers import Task, store


@contextmanager
def held_device(runtime, monkeypatch):
    """The engine's thread computes nothing more until the event is set, or the block ends; `task` has to be live."""
    entered, goes_on = Event(), Event()

    def hold(*_):
        entered.set()
        goes_on.wait()

    monkeypatch.setattr(Metrics, "observe_batch", hold)
    host, number = runtime.directory.version("task", 1).slot
    runtime.engine.ask(host, [Tokens([5], [0])], number)
    assert entered.wait(180)
    try:
        yield goes_on
    finally:
        goes_on.set()


def test_aliases_that_wait_hold_no_thread(tmp_path, monkeypatch):
    """More aliases than there are registrars wait for the device; a list of tasks needs a registrar and has it."""
    count = REGISTRARS + 1
    store(tmp_path, task=[Task(seed=seed) for seed in range(count + 1)])

    def all_load(runtime):
        versions = runtime.directory.task("task").versions.values()
        return sum(version.state is State.LOADING for version in versions) >= REGISTRARS

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


def test_a_batch_that_hangs_does_not_hold_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "CLOSE_TIMEOUT", 0.1)
    store(tmp_path, task=Task())

    def live(device):
        with opened(tmp_path, dtype="auto", shutdown_timeout=10_000.0) as runtime:
            device.enter_context(held_device(runtime, monkeypatch))

    with ThreadPoolExecutor(1) as thread, ExitStack() as device:
        thread.submit(live, device).result(180)
