"""Work that nobody waits for any more is given up: at its deadline, or once its client has left."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from starlette.requests import ClientDisconnect

from loops import Clock
from onebert_server.http.cancel_scope import CHECK_AFTER, CancelScope
from onebert_store.errors import DeadlineExceeded

LOOP = Clock


class Work:
    """A request that is worked on until the test says that it is done; `asked` counts the looks at its client."""

    def __init__(self, seconds=60.0):
        self.done, self.left, self.asked = asyncio.Event(), asyncio.Event(), 0
        self.running = asyncio.create_task(self._run(SimpleNamespace(deadline=time.monotonic() + seconds)))

    async def _run(self, context):
        with CancelScope(context, self._receive):
            await self.done.wait()

    async def _receive(self):
        self.asked += 1
        await self.left.wait()
        return {"type": "http.disconnect"}


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seconds", [CHECK_AFTER / 2, CHECK_AFTER * 1.5])
async def test_work_ends_at_its_deadline_and_no_sooner(seconds):
    ends = time.monotonic() + seconds
    work = Work(seconds)
    with pytest.raises(DeadlineExceeded):
        await work.running
    assert time.monotonic() >= ends


async def test_the_clients_of_slow_work_alone_are_watched():
    loop, works = asyncio.get_running_loop(), []
    for _ in range(3):
        works += [Work(), Work()]
        await turns()
        loop.moved += CHECK_AFTER / 4
    for work in works[::2]:
        work.done.set()
        await work.running
    watched = []
    for _ in range(4):
        loop.moved += CHECK_AFTER / 4
        await turns()
        watched.append([work.asked for work in works[1::2]])
    assert watched[-1] == [1, 1, 1]
    assert [work.asked for work in works[::2]] == [0, 0, 0]
    assert watched[0] == [1, 0, 0], "each is looked at once it is old enough"
    for work in works[1::2]:
        work.left.set()
        with pytest.raises(ClientDisconnect):
            await work.running


async def test_work_that_is_cancelled_by_others_stays_cancelled():
    work = Work()
    await turns()
    work.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work.running
