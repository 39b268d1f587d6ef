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
        self._turn = asyncio.Lock()
        self._known: OrderedDict[tuple[str, ...], list[Change]] = OrderedDict()

    async def of(self, digests: tuple[str, ...], measure: Callable[[], Awaitable[list[Change]]]) -> list[Change]:
        """The changes of what has these digests, which `measure` finds where nobody has yet."""
        found = self._known.get(digests)
        if found is None:
            async with self._turn:
                found = self._known.get(digests)
                if found is None:
                    found = self._known[digests] = await measure()
        self._known.move_to_end(digests)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return found
