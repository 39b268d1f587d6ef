"""The messages between front ends and replicas: rows by reference and version, as each replica has rows of its own."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from onebert_server.engine.block import ENDED, REQUEST, SEQUENCE
from onebert_server.remote import wire
from onebert_server.versions.facts import Identity
from onebert_store.errors import OneBertError

# Pairs of a reference and a version with a number; beyond that all are forgotten, and resolved again.
MAX_ROWS = 2**16

Row = tuple[str, Identity]
"""A reference, and the version that it was resolved to."""


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """To a replica: a block with one request; its times are from now on, since the clocks of machines differ.

    Attributes:
        rows: of its sequences; their `generation` is the index.
        seq: the registry's change that these resolutions show, at most.
    """

    block: wire.BlockMessage
    rows: list[Row]
    seq: int


class Resolution(msgspec.Struct, frozen=True, array_like=True):
    """From a replica: its reply, with its own rows, and the registry's change that it shows."""

    reply: wire.Versions | wire.Refused
    seq: int


class Request(msgspec.Struct, frozen=True, array_like=True):
    """To a replica: a forwarded request without its body; `scope` has fields of its ASGI scope."""

    scope: dict[str, Any]
    headers: list[tuple[bytes, bytes]]


class Response(msgspec.Struct, frozen=True, array_like=True):
    """From a replica: the head of its response."""

    status: int
    headers: list[tuple[bytes, bytes]]


def task_of(refs: Iterable[str]) -> str:
    """Returns the task of references for the router; empty if they are of several tasks, or of none."""
    tasks = {reference.partition("@")[0] for reference in refs}
    return tasks.pop() if len(tasks) == 1 else ""


class Rows:
    """Numbers rows for the edge, which takes the numbers for generations."""

    def __init__(self) -> None:
        self._numbers: dict[Row, int] = {}
        self._rows: dict[int, Row] = {}
        self._next = count()

    def named(self, reply: wire.Versions, refs: Sequence[str] | None) -> wire.Versions:
        """Returns a reply with the numbers of rows in place of a replica's own rows."""
        # A version that was chosen for this request alone is named by itself: a replica might choose another one.
        named = [ref for place, ref in enumerate(refs or [""] * len(reply.found)) if place not in reply.missed]
        versions = [
            msgspec.structs.replace(
                row, slot=0, generation=self._number((ref if row.lasting and refs else row.version[0], row.version))
            )
            for row, ref in zip(reply.found, named, strict=True)
        ]
        return msgspec.structs.replace(reply, found=versions)

    def asked(self, block: wire.BlockMessage, seq: int) -> Iterator[tuple[NDArray[Any], Asked | None]]:
        """Yields each request of a block, with the message of its own, or None if one of its rows is forgotten."""
        requests, sequences = np.frombuffer(block.requests, REQUEST), np.frombuffer(block.sequences, SEQUENCE)
        ids = np.frombuffer(block.ids, np.int32)
        stops, ends = np.cumsum(requests["sequences"]), np.concatenate([[0], np.cumsum(sequences["tokens"])])
        for place, stop in enumerate(stops.tolist()):
            request = requests[place : place + 1].copy()
            start = stop - int(request["sequences"][0])
            of_request, principal = sequences[start:stop].copy(), block.principals[request["principal"][0]]
            distinct, of_request["generation"] = np.unique(of_request["generation"], return_inverse=True)
            of_request["text"] = np.unique(of_request["text"], return_inverse=True)[1]
            request["principal"] = 0
            arrays = wire.bytes_of(request), wire.bytes_of(of_request), wire.bytes_of(ids[ends[start] : ends[stop]])
            message = wire.BlockMessage([principal], *arrays, block.spans[place : place + 1])
            rows = [self._rows.get(number) for number in distinct.tolist()]
            known = [row for row in rows if row is not None]
            yield request, Asked(message, known, seq) if len(known) == len(rows) else None

    def _number(self, row: Row) -> int:
        if row not in self._numbers:
            if len(self._numbers) >= MAX_ROWS:
                self._numbers, self._rows = {}, {}
            self._numbers[row] = number = next(self._next)
            self._rows[number] = row
        return self._numbers[row]


def moved(times: NDArray[Any], fields: Sequence[str], seconds: float) -> NDArray[Any]:
    """Returns a copy of an array with these fields later by so many seconds."""
    later = times.copy()
    for field in fields:
        later[field] += seconds
    return later


def failed(number: int, error: OneBertError) -> wire.EndedMessage:
    """The message of one request that has ended with an error."""
    requests = np.zeros(1, ENDED)
    requests["number"] = number
    none = memoryview(b"")
    return wire.EndedMessage(wire.bytes_of(requests), none, none, [wire.why_of(error)], {})
