"""Results of another thread on the event loop: each reaches who waits for it."""

import asyncio
from concurrent.futures import Future
from threading import Thread

import pytest

from onebert_server.answering.arrivals import Arrivals


def on_a_thread(work):
    """Runs `work` on another thread, while the loop of the caller has no turn."""
    thread = Thread(target=work)
    thread.start()
    thread.join()


async def waiting(arrivals, futures):
    tasks = [asyncio.create_task(arrivals.results([(future, lambda: None)])) for future in futures]
    await asyncio.sleep(0)
    return tasks


async def test_errors_and_ends_without_one_reach_who_waits_for_them():
    arrivals, futures = Arrivals(), [Future() for _ in range(3)]
    tasks = await waiting(arrivals, futures)

    def end():
        futures[0].set_exception(ValueError("an error of the thread"))
        futures[1].cancel()
        futures[2].set_result("well")

    on_a_thread(end)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in found] == [ValueError, asyncio.CancelledError, list]


async def test_who_no_longer_waits_takes_its_future_along_and_nobody_elses():
    arrivals, futures = Arrivals(), [Future() for _ in range(2)]
    leaving, staying = await waiting(arrivals, futures)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert futures[0].cancelled()
    on_a_thread(lambda: futures[1].set_result("well"))
    assert await staying == ["well"]


def test_what_ends_after_its_loop_is_no_fault(caplog):
    future = Future()

    async def leave():
        asyncio.get_running_loop().call_later(0, asyncio.current_task().cancel)
        await Arrivals().results([(future, lambda: None)])

    future.cancel = lambda: False  # as one whose batch still runs
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(leave())
    future.set_result("too late")
    assert not caplog.records
