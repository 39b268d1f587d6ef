"""Uploads under way: whose makes room when all places are taken, and whose is taken next."""

import asyncio
from itertools import count

import pytest

from onebert_server.fairness.receiving import MAX_UPLOADS, SLOW_RATE, SLOW_SECONDS, Receiving
from onebert_store.errors import QueueFull


class Uploads:
    """Uploads that have sent some bytes and then send nothing; time passes when a test says so."""

    def __init__(self):
        self.receiving = Receiving()
        self.ended = []
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time()
        self._loop.time = lambda: self._now

    async def begin(self, principal, size):
        """Returns when so many bytes have come, or raises what the upload is refused with."""
        came = asyncio.Event()

        async def body():
            yield bytes(size)
            came.set()
            await asyncio.Event().wait()

        async def upload():
            with self.receiving.admitted(principal) as incoming:
                try:
                    async for _ in incoming.parts(body()):
                        pass
                except TimeoutError:
                    self.ended.append((principal, size))

        task = asyncio.create_task(upload())
        waits = asyncio.create_task(came.wait())
        await asyncio.wait([task, waits], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        if task.done():
            await task
        await asyncio.sleep(0)

    def pass_time(self, seconds):
        self._now += seconds


async def test_who_holds_most_places_makes_room_and_not_the_slowest_link():
    uploads = Uploads()
    await uploads.begin("modest", 1)
    for number in range(1, MAX_UPLOADS):
        await uploads.begin("greedy", 1000 + number)
    uploads.pass_time(SLOW_SECONDS)
    await uploads.begin("third", 10)
    assert uploads.ended == [("greedy", 1001)]
    await uploads.begin("greedy", 10)
    assert uploads.ended == [("greedy", 1001), ("greedy", 1002)]


async def test_uploads_that_are_not_slow_are_not_ended():
    uploads = Uploads()
    await uploads.begin("modest", 1)
    for _ in range(1, MAX_UPLOADS):
        await uploads.begin("greedy", 2 * SLOW_RATE)
    uploads.pass_time(SLOW_SECONDS)
    with pytest.raises(QueueFull):
        await uploads.begin("third", 10)
    assert uploads.ended == []


async def test_whole_uploads_are_taken_in_turns_of_their_principals():
    receiving, taken, together = Receiving(), [], 0

    async def take(name, principal):
        nonlocal together
        with receiving.admitted(principal) as incoming:
            async with receiving.place(incoming):
                together += 1
                taken.append(name)
                assert together == 1
                await asyncio.sleep(0)
                together -= 1

    principals = ["greedy"] * 5 + ["modest"] * 2 + ["third"]
    numbers = {principal: count(1) for principal in principals}
    tasks = [asyncio.create_task(take(f"{principal}{next(numbers[principal])}", principal)) for principal in principals]
    gone = asyncio.create_task(take("gone", "modest"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(*tasks)
    # When nothing waits any more, the next has its turn at once.
    await take("late", "modest")
    assert taken == ["greedy1", "greedy2", "modest1", "third1", "greedy3", "modest2", "greedy4", "greedy5", "late"]
