"""The engine as a front end sees it: versions are remembered, and yet every answer is by those of its moment.

A front end tokenizes by what it was last told, and says which versions that was. The engine's process resolves the
references itself when the tokens come, and computes only if they mean these versions; else it says what they mean, and
the front end begins again.
"""

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onebert_encoder.tokens import Tokens
from onebert_server import wire
from onebert_server.versions import Logits, Moved, Record, Wanted
from onebert_store.errors import OneBertError
from onebert_store.manifest import Manifest

# References to remember; when there are more all are forgotten, and asked for again as they come.
MAX_REMEMBERED = 65536


@dataclass(frozen=True)
class Remembered:
    """A version as the process with the engine told it."""

    task: str
    version: int
    digest: str
    manifest: Manifest


class RemoteVersions:
    """Versions behind a channel; `received` takes the replies."""

    def __init__(self) -> None:
        self.channel: wire.Channel  # before the first request there is one
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[wire.Answer | wire.Mean]] = {}
        self._by_ref: dict[str, Remembered] = {}
        self._every: dict[bool, list[str]] = {}

    async def find(self, wanted: Wanted) -> "RemoteFound":
        """See Versions; asks only for what is not remembered."""
        refs = self._every.get(wanted.pair) if wanted.refs is None else wanted.refs
        if refs is not None and self._by_ref.keys() >= set(refs):
            return RemoteFound(self, wanted, refs, [self._by_ref[ref] for ref in refs])
        reply = await self.ask(wanted, refs=wanted.refs or (), versions=())
        # Without an answer to give there is nothing to mean: no task takes such an input.
        return self.remember(wanted, reply, {}) if isinstance(reply, wire.Mean) else RemoteFound(self, wanted, (), ())

    def remember(self, wanted: Wanted, mean: wire.Mean, said: Mapping[str, Remembered]) -> "RemoteFound":
        """Keeps what references mean, and finds the versions that are wanted.

        Args:
            wanted: what was asked for.
            mean: the reply.
            said: what the references were said to mean, and those still do that the reply tells no version of.
        """
        told = {
            ref: Remembered(new.task, new.version, new.digest, Manifest.model_validate_json(new.manifest))
            for ref, new in mean.versions.items()
        }
        if len(self._by_ref) + len(told) > MAX_REMEMBERED:
            self._by_ref.clear()
        now = {ref: told.get(ref) or said[ref] for ref in mean.refs}
        self._by_ref |= now
        if wanted.refs is None:
            self._every[wanted.pair] = mean.refs
        return RemoteFound(self, wanted, mean.refs, [now[ref] for ref in mean.refs])

    async def ask(
        self,
        wanted: Wanted,
        refs: Iterable[str],
        versions: Iterable[int],
        sequences: Iterable[wire.Tokens] = (),
        order: Iterable[int] = (),
    ) -> wire.Answer | wire.Mean:
        """Sends a question and waits for its reply.

        Raises:
            OneBertError: what the process with the engine refuses with.
        """
        number = next(self._numbers)
        future: asyncio.Future[wire.Answer | wire.Mean] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        every = wanted.refs is None
        self.channel.send(
            wire.Ask(number, list(refs), every, wanted.pair, list(versions), list(sequences), list(order))
        )
        try:
            return await future
        finally:
            del self._waiting[number]

    def received(self, reply: wire.Answer | wire.Mean | wire.Refusal) -> None:
        """Hands a reply to who waits for it, if still somebody does."""
        future = self._waiting.get(reply.number)
        if future is None or future.done():
            return
        if isinstance(reply, wire.Refusal):
            error = OneBertError(reply.detail)
            error.status, error.code, error.title = reply.status, reply.code, reply.title
            error.retry_after = reply.retry_after
            future.set_exception(error)
        else:
            future.set_result(reply)


class RemoteFound:
    """Versions that references meant when last heard of."""

    def __init__(
        self, versions: RemoteVersions, wanted: Wanted, refs: Sequence[str], records: Sequence[Remembered]
    ) -> None:
        self._versions = versions
        self._wanted = wanted
        self._refs = refs
        self._remembered = records
        self.records: Sequence[Record] = records

    async def compute(self, tokens: Sequence[Tokens]) -> Sequence[Logits]:
        """See Found; equal tokens, which are one object, are sent once."""
        distinct = {id(one): one for one in tokens}
        places = {key: place for place, key in enumerate(distinct)}
        reply = await self._ask(
            [wire.Tokens(one.input_ids, one.type_ids) for one in distinct.values()],
            [places[id(one)] for one in tokens],
        )
        return [_logits(raw, record.manifest) for raw, record in zip(reply.logits, self._remembered, strict=True)]

    async def confirm(self) -> None:
        """See Found."""
        await self._ask()

    def release(self) -> None:
        """Nothing is pinned."""

    async def _ask(self, sequences: Iterable[wire.Tokens] = (), order: Iterable[int] = ()) -> wire.Answer:
        versions = [record.version for record in self._remembered]
        reply = await self._versions.ask(self._wanted, self._refs, versions, sequences, order)
        if isinstance(reply, wire.Mean):
            said = dict(zip(self._refs, self._remembered, strict=True))
            raise Moved(self._versions.remember(self._wanted, reply, said))
        return reply


def _logits(raw: bytes, manifest: Manifest) -> Logits:
    logits = np.frombuffer(raw, np.float32)
    return logits.reshape(-1, len(manifest.labels)) if manifest.per_token else logits
