"""Answers the calls of front ends in a replica: they name rows by reference and version, and it has rows of its own."""

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from onebert_ray.messages import Asked, Resolution, failed, moved
from onebert_server.access.context import Context
from onebert_server.answering.admission import Admission
from onebert_server.answering.gateway import Resolved, ShadowQuestions, Wanted
from onebert_server.engine.block import ENDED, REQUEST, SEQUENCE
from onebert_server.logs import log_failure
from onebert_server.remote import wire
from onebert_server.remote.edge import RemoteEdge
from onebert_server.versions.facts import Identity
from onebert_server.versions.position import Position
from onebert_store.errors import NotFound, OneBertError, RowGone

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing

logger = logging.getLogger("onebert.on_ray")


class Calls:
    """Answers the calls of all front ends, as one edge."""

    def __init__(self, admission: Admission, position: Position, tracing: "Tracing | None") -> None:
        self._admission, self._position = admission, position
        self._edge = RemoteEdge(admission, self._hand_over, tracing)
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._computing: dict[int, asyncio.Future[wire.EndedMessage]] = {}

    async def resolve(self, question: wire.Resolve) -> Resolution:
        """Resolves references to rows of this replica."""
        return Resolution(await self._edge.reply_to(question), self._position.seq)

    def shadow(self, questions: ShadowQuestions) -> None:
        """Has shadows of this replica compute questions."""
        self._admission.shadow(questions)

    async def compute(self, asked: Asked) -> wire.EndedMessage:
        """Computes one request by this replica's rows; its times are from now on."""
        now = time.monotonic()
        request = moved(np.frombuffer(asked.block.requests, REQUEST), ("deadline", "submitted"), now)
        theirs, number = int(request["number"][0]), next(self._numbers)
        try:
            rows = await self._rows(asked, float(request["deadline"][0]))
        except OneBertError as error:
            return failed(theirs, error)
        # Catch everything: a front end waits for each call.
        except Exception as error:
            log_failure(logger, "a request of a front end", error)
            return failed(theirs, OneBertError("the server failed to answer; its log says where"))
        sequences = np.frombuffer(asked.block.sequences, SEQUENCE).copy()
        indexes = sequences["generation"].copy()
        sequences["slot"] = np.array([row.slot for row in rows], np.int32)[indexes]
        sequences["generation"] = np.array([row.generation for row in rows], np.int64)[indexes]
        request["number"] = number
        arrays = {"requests": wire.bytes_of(request), "sequences": wire.bytes_of(sequences)}
        ended = await self._answered(number, msgspec.structs.replace(asked.block, **arrays))
        times = moved(np.frombuffer(ended.requests, ENDED), ("began", "ended"), -time.monotonic())
        times["number"] = theirs
        batches = {theirs: ended.batches[number]} if number in ended.batches else {}
        return msgspec.structs.replace(ended, requests=wire.bytes_of(times), batches=batches)

    async def _answered(self, number: int, block: wire.BlockMessage) -> wire.EndedMessage:
        computing: asyncio.Future[wire.EndedMessage] = self._loop.create_future()
        self._computing[number] = computing
        try:
            self._edge.take(block)
            return await computing
        except asyncio.CancelledError:
            self._edge.take(wire.Withdraw([number]))
            raise
        finally:
            del self._computing[number]

    async def _rows(self, asked: Asked, deadline: float) -> Sequence[Resolved]:
        """Resolves the rows here; raises RowGone if a reference means another version than it did for the front end."""
        references, versions = [reference for reference, _ in asked.rows], [version for _, version in asked.rows]
        if not references:
            return []
        context = Context(asked.block.principals[0], deadline, time.monotonic(), "a request of a front end")
        wanted = Wanted(references)
        try:
            rows = await self._resolved(context, wanted)
            as_before = _identities(rows) == versions
        except NotFound:
            as_before = False
        if not as_before and self._position.seq < asked.seq:
            # The front end has seen a change that has not come to this replica.
            rows = await self._resolved(replace(context, min_seq=asked.seq), wanted)
            as_before = _identities(rows) == versions
        if not as_before:
            raise RowGone("a reference means another version now")
        return rows

    async def _resolved(self, context: Context, wanted: Wanted) -> list[Resolved]:
        return [row for row in await self._admission.resolve(context, wanted) if isinstance(row, Resolved)]

    def _hand_over(self, ended: wire.EndedMessage) -> None:
        for number, part in apart(ended):
            if (computing := self._computing.get(number)) is not None and not computing.done():
                computing.set_result(part)


def _identities(rows: Sequence[Resolved]) -> list[Identity | None]:
    """Returns the versions of rows; none of a reference that each request chooses a version for."""
    return [row.facts.identity if row.lasting else None for row in rows]


def apart(ended: wire.EndedMessage) -> Iterator[tuple[int, wire.EndedMessage]]:
    """Yields a message for each request, by its number."""
    requests, outputs = np.frombuffer(ended.requests, ENDED), np.frombuffer(ended.outputs, np.int32)
    logits = np.frombuffer(ended.logits, np.float32)
    stops, ends = np.cumsum(requests["sequences"]).tolist(), [0, *np.cumsum(outputs).tolist()]
    for place, stop in enumerate(stops):
        request, start = requests[place : place + 1].copy(), stop - int(requests["sequences"][place])
        number, error = int(request["number"][0]), int(request["error"][0])
        request["error"] = min(error, 0)
        arrays = wire.bytes_of(request), wire.bytes_of(outputs[start:stop])
        numbers = wire.bytes_of(logits[ends[start] : ends[stop]])
        errors = ended.errors[error : error + 1] if error >= 0 else []
        batches = {number: ended.batches[number]} if number in ended.batches else {}
        yield number, wire.EndedMessage(*arrays, numbers, errors, batches, ended.full)
