"""Runs calls on the threads of a pool, for an event loop; waits for work that goes on when its caller leaves."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def run_in(pool: Executor, call: Callable[..., T], *arguments: object) -> T:
    """Returns the result of a call on one of the pool's threads."""
    return await asyncio.get_running_loop().run_in_executor(pool, partial(call, *arguments))


async def shielded(work: Awaitable[T]) -> T:
    """Waits for work that a cancellation of the caller does not stop.

    Nobody reads the error of work whose caller has left, and asyncio does not log it: it may quote a text.
    """
    future = asyncio.ensure_future(work)
    await all_shielded([future])
    return future.result()


async def all_shielded(works: Iterable[Awaitable[object]]) -> None:
    """Like `shielded`, for several works at once; raises an error of one as soon as it comes."""
    futures = [*map(asyncio.ensure_future, works)]
    for future in futures:
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    # Not `asyncio.shield`: newer Pythons log such an error whoever has read it.
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
    for future in done:
        future.result()


async def to_the_end(work: Awaitable[T]) -> T:
    """Like `shielded`, but a caller that is cancelled waits, too, and goes on with the result."""
    future = asyncio.ensure_future(work)
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    return future.result()
