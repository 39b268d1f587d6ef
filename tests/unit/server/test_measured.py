"""What versions change is measured once for each content, one content at a time, and nobody is held by others."""

import asyncio
import gc

import pytest

from onebert_server.versions.measured import MAX_CACHED, Measured
from onebert_store.file.changes import Change


class Measuring:
    """Measurements that go on until they are released; `begun` has the names of all that began."""

    def __init__(self):
        self.measured, self.begun, self.released = Measured(), [], asyncio.Event()

    def ask(self, name, error=None):
        async def measure():
            self.begun.append(name)
            await self.released.wait()
            if error:
                raise error
            return found(name)

        return asyncio.create_task(self.measured.get((name,), measure))


def found(name):
    return [Change("added", name, None, 1.0, 1.0, 1.0)]


async def turns():
    """Lets every task run as far as it comes by itself."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_asks_for_the_same_shares_one_measurement_and_others_wait_their_turn():
    measuring = Measuring()
    asked = [measuring.ask(name) for name in ("one", "one", "other", "one")]
    await turns()
    assert measuring.begun == ["one"]
    measuring.released.set()
    assert await asyncio.gather(*asked) == [found(name) for name in ("one", "one", "other", "one")]
    assert await measuring.ask("one") == found("one")
    assert measuring.begun == ["one", "other"]


async def test_who_leaves_does_so_at_once_and_what_has_begun_is_kept():
    measuring = Measuring()
    first, second = measuring.ask("one"), measuring.ask("other")
    await turns()
    for task in (first, second):
        task.cancel()
    await asyncio.wait([first, second])
    # The thread of the first one is still at work, so no other may begin.
    third = measuring.ask("third")
    await turns()
    assert measuring.begun == ["one"]
    measuring.released.set()
    assert await third == found("third")
    assert await measuring.ask("one") == found("one")
    assert measuring.begun == ["one", "third"]


async def test_an_error_is_for_who_asked_and_the_next_one_tries_again():
    measuring = Measuring()
    failing, next_one = measuring.ask("one", OSError("the disk")), measuring.ask("one")
    await turns()
    measuring.released.set()
    with pytest.raises(OSError, match="the disk"):
        await failing
    assert await next_one == found("one")


async def test_an_error_that_nobody_waits_for_any_more_is_told_to_nobody():
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    measuring = Measuring()
    left = measuring.ask("one", OSError("the disk"))
    await turns()
    left.cancel()
    await asyncio.wait([left])
    measuring.released.set()
    await turns()
    # asyncio speaks of an error that nobody took when its task is collected.
    gc.collect()
    assert told == []


async def test_the_oldest_is_forgotten():
    measuring = Measuring()
    measuring.released.set()
    for number in [*range(MAX_CACHED), 0, MAX_CACHED]:
        await measuring.ask(number)
    measuring.begun.clear()
    await measuring.ask(0)
    await measuring.ask(1)
    assert measuring.begun == [1]
