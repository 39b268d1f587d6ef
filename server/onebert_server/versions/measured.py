"""Caches the changes that versions make to the base, measured once for each content."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from onebert_server.threads import shielded
from onebert_store.file.changes import Change

# Cached measurements, each of one content or of a pair.
MAX_CACHED = 64


class Measured:
    """Changes by the digests of the measured contents, which never change. For one event loop.

    One measurement runs at a time, and waiting for it holds no thread: a large delta takes seconds.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, ...], list[Change]] = OrderedDict()
        self._under_way: asyncio.Task[None] | None = None

    async def get(self, digests: tuple[str, ...], measure: Callable[[], Awaitable[list[Change]]]) -> list[Change]:
        """Returns the changes for these digests, and measures them if they are not known.

        A caller that gives up leaves at once. A running measurement goes on and is kept, since its thread cannot be
        stopped; one that has not begun is dropped.
        """
        while digests not in self._known:
            if self._under_way is None:
                self._under_way = asyncio.create_task(self._measure(digests, measure))
                await shielded(self._under_way)
            else:
                # The running measurement may be the same; its errors go to the caller that began it.
                await asyncio.wait([self._under_way])
        self._known.move_to_end(digests)
        return self._known[digests]

    async def _measure(self, digests: tuple[str, ...], measure: Callable[[], Awaitable[list[Change]]]) -> None:
        try:
            self._known[digests] = await measure()
        finally:
            self._under_way = None
        if len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)
