"""Runs calls on the threads of a pool, for an event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def run_in(pool: Executor, call: Callable[..., T], *arguments: object) -> T:
    """Returns the result of a call on one of the pool's threads."""
    return await asyncio.get_running_loop().run_in_executor(pool, partial(call, *arguments))
