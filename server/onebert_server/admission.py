"""Where requests meet versions, in the process with the engine: references are pinned, and tokens let in."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

from onebert_encoder.answer import TASK_TYPES
from onebert_encoder.tokens import Tokens
from onebert_server.directory import Directory, Resident
from onebert_server.engine import Engine, Item
from onebert_server.schemas import MAX_FANOUT
from onebert_server.versions import Logits, Record, Wanted
from onebert_store.errors import InvalidInput
from onebert_store.registry import VersionRecord


class Pinned:
    """Versions that stay what they are until they have answered, whatever is moved or deleted meanwhile."""

    def __init__(self, directory: Directory, engine: Engine, residents: Sequence[Resident]) -> None:
        self._directory = directory
        self._engine = engine
        self._residents = residents
        self.records: Sequence[Record] = [resident.record for resident in residents]

    async def compute(self, tokens: Sequence[Tokens]) -> Sequence[Logits]:
        """See Found."""
        # Shielded: a request that is cancelled lets its batch finish.
        return await asyncio.shield(asyncio.wrap_future(self.submit(tokens)))

    def submit(self, tokens: Sequence[Tokens]) -> Future[list[Logits]]:
        """Queues the tokens; the pins are given back with the answer, or at once where they are refused."""
        try:
            items = [Item(one, resident.slot) for one, resident in zip(tokens, self._residents, strict=True)]
            future = self._engine.submit(items)
        except BaseException:
            self.release()
            raise
        # Not when the request ends: it may end early, and the engine still reads the rows.
        future.add_done_callback(lambda _: self.release())
        return future

    async def confirm(self) -> None:
        """What is pinned does not move."""

    def release(self) -> None:
        """Gives the pins back."""
        self._directory.unpin(self._residents)


class Admission:
    """Versions of the directory."""

    def __init__(self, directory: Directory, engine: Engine) -> None:
        self._directory = directory
        self._engine = engine

    async def find(self, wanted: Wanted) -> Pinned:
        """See Versions; `release` or `compute` gives the pins back."""
        return self.pin(wanted)

    def pin(self, wanted: Wanted) -> Pinned:
        """The same without a loop."""
        if wanted.refs is not None:
            return self._pinned(self._directory.pin(wanted.refs))

        def takes(record: VersionRecord) -> bool:
            kind = TASK_TYPES[record.manifest.task_type]
            return kind.takes_pair if wanted.pair else kind.takes_text

        pinned = self._pinned(self._directory.pin_live(takes))
        if len(pinned.records) > MAX_FANOUT:
            pinned.release()
            raise InvalidInput(f"there are more than {MAX_FANOUT} tasks; name those you want")
        return pinned

    def _pinned(self, residents: Sequence[Resident]) -> Pinned:
        return Pinned(self._directory, self._engine, residents)
