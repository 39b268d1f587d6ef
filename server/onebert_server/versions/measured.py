"""What versions change in the base, measured once for each content."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from onebert_store.file.changes import Change

# Contents, and pairs of them, whose changes are kept.
KEPT = 64


class Measured:
    """Changes by the digests of what was measured; content never changes, so what was seen once stays true.

    One is measured at a time, and who waits for it holds no thread: a large delta takes seconds. For one event loop.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, ...], list[Change]] = OrderedDict()
        self._under_way: asyncio.Task[None] | None = None

    async def of(self, digests: tuple[str, ...], measure: Callable[[], Awaitable[list[Change]]]) -> list[Change]:
        """The changes of what has these digests, which `measure` finds where nobody has yet.

        Whoever gives up waiting leaves at once. What has begun to be measured goes on and is kept, since its thread
        cannot be stopped; what has not begun is dropped.
        """
        while digests not in self._known:
            if self._under_way is None:
                self._under_way = asyncio.create_task(self._measure(digests, measure))
                # Whoever began it may have left: asyncio would log the error then, with a text that may quote a file.
                self._under_way.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                await asyncio.shield(self._under_way)
            else:
                # What is under way may be the same; its errors are for who began it.
                await asyncio.wait([self._under_way])
        self._known.move_to_end(digests)
        return self._known[digests]

    async def _measure(self, digests: tuple[str, ...], measure: Callable[[], Awaitable[list[Change]]]) -> None:
        try:
            self._known[digests] = await measure()
        finally:
            self._under_way = None
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
