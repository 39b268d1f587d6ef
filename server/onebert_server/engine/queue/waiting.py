"""Work that waits for the engine, in two tables: sequences, and the turns in which requests have theirs served."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.flat import ranges
from onebert_encoder.maths.sequences import Sequences
from onebert_server.engine.queue.order import Indices, begins, picked, records

# Tokens that a request is served before the rest of it is due anew.
REQUEST_TURN = 2048

# One sequence. request: the caller's number of its request, of no other under way. position: in the request. principal:
# its number in `Flows`. host: index among the engine's hosts. slot: of the row in the host's bank. second: start of a
# pair's own sequence, else 0. text: equal numbers are one text. start: place of its ids in `Waiting`. tokens: at least
# one. cost: the computed tokens, fewer if it shares a text with an earlier one. work: in tokens of the slowest host.
WAITING = np.dtype(
    [(name, "i8") for name in ("text", "start", "tokens")]
    + [(name, "i4") for name in ("request", "position", "principal", "host", "slot", "second", "cost", "work")]
)
# One turn of a request: the sequences from `start` to `end`; `tokens`, `cost`, `work` are their sums. ordinal: turns of
# the request that come before. due: of the request's first turn here; each other one is due `slack` after the one
# before was served. The turns of a request follow one another.
_TURN = np.dtype(
    [(name, "i4") for name in ("request", "principal", "host", "ordinal")]
    + [(name, "i8") for name in ("start", "end", "tokens", "cost", "work")]
    + [(name, "f8") for name in ("due", "slack", "deadline")]
)
_AMOUNTS = "tokens", "cost", "work"
_ROWS, _IDS, _TURNS = 256, 2**13, 64


class Texts(NamedTuple):
    """Sequences that wait or run: WAITING, and their ids end to end, as `Sequences` has them."""

    rows: NDArray[Any]
    ids: NDArray[np.int32]

    @property
    def host(self) -> int:
        """The index of the first one's host."""
        return int(self.rows["host"][0])

    @property
    def inputs(self) -> Sequences:
        rows = self.rows
        return Sequences(self.ids, rows["tokens"], rows["second"], rows["text"])

    def part(self, chosen: Array) -> "Texts":
        """Some of them, by a mask or by their indices."""
        tokens = self.rows["tokens"]
        starts = tokens.cumsum() - tokens
        return Texts(picked(self.rows, chosen), self.ids[ranges(starts[chosen], tokens[chosen])])


def joined(texts: Sequence[Texts]) -> Texts:
    """One after another; at least one."""
    return texts[0] if len(texts) == 1 else Texts(*map(np.concatenate, zip(*texts, strict=True)))


class Waiting:
    """The tables. If turns are due at the same time, the one with the lower index comes first.

    Attributes:
        rows: WAITING; a row is free if no turn refers to it.
        sequences: the number of the others.
        several: whether a request may have several turns.
    """

    def __init__(self) -> None:
        self.rows, self._ids = np.empty(_ROWS, WAITING), np.empty(_IDS, np.int32)
        self._end = self._ids_end = 0
        self._turns = np.empty(_TURNS, _TURN)
        self._count = 0
        self.sequences = 0
        self.several = False

    @property
    def turns(self) -> NDArray[Any]:
        return self._turns[: self._count]

    @property
    def requests(self) -> int:
        """The number of requests."""
        return int(np.count_nonzero(self.turns["ordinal"] == 0))

    def add(
        self, texts: Texts, counts: NDArray[Any], slack: NDArray[Any], due: NDArray[Any], deadlines: NDArray[Any]
    ) -> None:
        """Adds requests with so many sequences each, which let others go first for their `slack` in seconds."""
        rows, place = texts.rows, self._append(texts)
        self.sequences += len(rows)
        starts, requests, ordinals = _cut(rows["work"], counts)
        first, end = self._count, self._count + len(starts)
        if end > len(self._turns):
            self._turns = np.concatenate([self.turns, np.empty(end, _TURN)])
        turns, self._count = self._turns[first:end], end
        single = len(starts) == len(rows)
        for name in ("request", "principal", "host"):
            turns[name] = rows[name] if single else rows[name][starts]
        for name in _AMOUNTS:
            turns[name] = rows[name] if single else np.add.reduceat(rows[name], starts, dtype=np.int64)
        turns["start"] = starts + place
        turns["end"][:-1], turns["end"][-1] = turns["start"][1:], self._end
        turns["ordinal"] = 0
        if requests is not None:
            turns["ordinal"], self.several = ordinals, True
            slack, due, deadlines = slack[requests], due[requests], deadlines[requests]
        turns["slack"], turns["due"], turns["deadline"] = slack, due, deadlines

    def clear(self) -> Texts:
        """Takes out and returns all sequences."""
        if self._end == self.sequences:
            texts = Texts(self.rows[: self._end].copy(), self._ids[: self._ids_end].copy())
        else:
            texts = self._texts(picked(self.rows, self._live()))
        self._keep(self.turns[:0])
        return texts

    def serve(self, turns: Indices, rows: Indices, now: float) -> Texts:
        """Takes out and returns rows, in this order; `turns` are theirs. Requests whose turn ends are due anew."""
        taken, table = picked(self.rows, rows), self.turns
        if self.sequences == len(table):
            left = np.ones(len(table), np.bool_)
            left[turns] = False
        else:
            table["start"] += np.bincount(turns, minlength=len(table))
            for name in _AMOUNTS:
                table[name] -= np.bincount(turns, taken[name], len(table)).astype(np.int64)
            left = table["start"] < table["end"]
        texts, rest = self._texts(taken), picked(table, left)
        if self.several and rest["ordinal"].any():
            served = np.zeros(len(table), np.intp)
            served[turns] = np.arange(len(turns))
            rest = _due_anew(rest, served[left.nonzero()[0] - 1], now)
        self._keep(rest)
        return texts

    def drop(self, gone: NDArray[np.bool_]) -> NDArray[Any]:
        """Takes out all turns of some requests; returns their rows."""
        turns = picked(self.turns, gone)
        rows = picked(self.rows, ranges(turns["start"], turns["end"] - turns["start"]))
        self._keep(picked(self.turns, ~gone))
        return rows

    def firsts(self, turns: Indices, principals: int) -> Indices:
        """Returns of each principal the index of its first one of some turns; -1 if it has none."""
        if self.several:
            turns = turns[self.turns["ordinal"][turns] == 0]
        order = turns[self.turns["due"][turns].argsort(kind="stable")][::-1]
        firsts = np.full(principals, -1)
        # The last assignment to an element counts.
        firsts[self.turns["principal"][order]] = order
        return firsts

    def _keep(self, turns: NDArray[Any]) -> None:
        self._count = len(turns)
        records(self._turns)[: len(turns)] = records(turns)
        self.sequences = int((turns["end"] - turns["start"]).sum())
        if not self._count:
            self._end, self._ids_end, self.several = 0, 0, False

    def _live(self) -> Indices:
        return ranges(self.turns["start"], self.turns["end"] - self.turns["start"])

    def _texts(self, rows: NDArray[Any]) -> Texts:
        return Texts(rows, self._ids[ranges(rows["start"], rows["tokens"])])

    def _append(self, texts: Texts) -> int:
        (rows, ids), place = texts, self._end
        if place + len(rows) > len(self.rows) or self._ids_end + len(ids) > len(self._ids):
            texts = joined([self._texts(picked(self.rows, self._live())), texts])
            lengths = self.turns["end"] - self.turns["start"]
            self.turns["end"] = lengths.cumsum()
            self.turns["start"] = self.turns["end"] - lengths
            self.rows = np.empty(max(2 * len(texts.rows), _ROWS), WAITING)
            self._ids = np.empty(max(2 * len(texts.ids), _IDS), np.int32)
            self._end = self._ids_end = 0
            self._append(texts)
            return self._end - len(rows)
        rows["start"] = rows["tokens"].cumsum() - rows["tokens"] + self._ids_end
        records(self.rows)[place : place + len(rows)] = records(rows)
        self._ids[self._ids_end : self._ids_end + len(ids)] = ids
        self._end, self._ids_end = place + len(rows), self._ids_end + len(ids)
        return place


def _cut(work: NDArray[Any], counts: NDArray[Any]) -> tuple[Indices, Indices | None, NDArray[np.int64] | None]:
    """Cuts requests into turns, and returns of each its first row, its request, and its place in the request.

    The last two are None if each request has one.
    """
    if len(work) == len(counts):
        return np.arange(len(work)), None, None
    ends = counts.cumsum()
    starts = ends - counts
    long = (np.add.reduceat(work, starts, dtype=np.int64) > REQUEST_TURN).nonzero()[0]
    if not len(long):
        return starts, None, None
    ordinals, requests = np.zeros(len(work), np.int64), np.arange(len(counts)).repeat(counts)
    for start, end in zip(starts[long].tolist(), ends[long].tolist(), strict=True):
        # A turn ends with the row that reaches the end of its tokens; the row may reach the next turn's end, too.
        before = np.arange(1, end - start)
        reached = work[start : end - 1].cumsum(dtype=np.int64) // REQUEST_TURN
        ordinals[start + 1 : end] = before + np.minimum(np.minimum.accumulate(reached - before), 0)
    first = (begins(requests) | begins(ordinals)).nonzero()[0]
    return first, requests[first], ordinals[first]


def _due_anew(turns: NDArray[Any], served: Indices, now: float) -> NDArray[Any]:
    """Makes requests due anew whose first turn has been served; `served`: when the turn before each was.

    They come behind all others, in the order in which that happened.
    """
    starts = begins(turns["request"])
    first = turns["ordinal"][starts]
    of_request = np.cumsum(starts) - 1
    anew = first[of_request] > 0
    turns["ordinal"] -= first[of_request].astype(np.int32)
    turns["due"][anew] = now + turns["slack"][anew]
    return picked(turns, np.where(anew, served[starts][of_request], -1).argsort(kind="stable"))
