"""Work that waits for the engine, in two tables: sequences, and the turns in which requests have theirs served."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_server.engine.queue.order import Indices, begins, picked, records, spread

# Tokens that a request is served before the rest of it is due anew.
REQUEST_TURN = 2048

# One sequence. request: the caller's number of its request, of no other that waits. position: in the request.
# principal: its number in `Flows`. host: index among the engine's hosts. slot: of the row in the host's bank. second:
# start of a pair's own sequence, else 0. text: equal numbers in one block are one text. start: place of the ids in
# the caller's buffer. tokens: at least one. cost: the computed tokens, fewer if it shares a text with an earlier
# one. work: in tokens of the slowest host.
WAITING = np.dtype(
    [(name, "i4") for name in ("request", "position", "principal", "host", "slot", "second", "text")]
    + [("start", "i8")]
    + [(name, "i4") for name in ("tokens", "cost", "work")]
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
_ROWS, _TURNS = 256, 64


class Waiting:
    """The tables. If turns are due at the same time, the one with the lower index comes first.

    Attributes:
        rows: WAITING; a row is free if no turn refers to it.
        sequences, cost: number and computed tokens of the others.
        several: whether a request may have several turns.
    """

    def __init__(self) -> None:
        self.rows = np.empty(_ROWS, WAITING)
        self._end = 0
        self._turns = np.empty(_TURNS, _TURN)
        self._count = 0
        self.sequences = self.cost = 0
        self.several = False

    @property
    def turns(self) -> NDArray[Any]:
        return self._turns[: self._count]

    @property
    def requests(self) -> int:
        """The number of requests."""
        return int(np.count_nonzero(self.turns["ordinal"] == 0))

    def add(
        self, rows: NDArray[Any], counts: NDArray[Any], slack: NDArray[Any], deadlines: NDArray[Any], now: float
    ) -> None:
        """Adds requests with so many rows each; one lets others go first for its `slack` in seconds."""
        place = self._room(len(rows))
        records(self.rows)[place : place + len(rows)] = records(rows)
        self._end += len(rows)
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
            turns["ordinal"], slack, deadlines, self.several = ordinals, slack[requests], deadlines[requests], True
        turns["slack"], turns["deadline"] = slack, deadlines
        turns["due"] = turns["slack"] + now
        self.cost += int(turns["cost"].sum())

    def clear(self) -> NDArray[Any]:
        """Takes out and returns all rows."""
        rows = self.rows[: self._end]
        whole = self._end == self.sequences
        rows = rows.copy() if whole else picked(rows, spread(self.turns["start"], self.turns["end"]))
        self._keep(self.turns[:0])
        return rows

    def serve(self, turns: Indices, rows: Indices, now: float) -> NDArray[Any]:
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
        rest = picked(table, left)
        if self.several and rest["ordinal"].any():
            served = np.zeros(len(table), np.intp)
            served[turns] = np.arange(len(turns))
            rest = _due_anew(rest, served[left.nonzero()[0] - 1], now)
        self._keep(rest)
        return taken

    def drop(self, gone: NDArray[np.bool_]) -> None:
        """Takes out all turns of some requests."""
        self._keep(picked(self.turns, ~gone))

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
        self.cost = int(turns["cost"].sum())
        if not self._count:
            self._end, self.several = 0, False

    def _room(self, count: int) -> int:
        """Returns the place of the next row, behind which there is room for so many."""
        if self._end + count > len(self.rows):
            live = spread(self.turns["start"], self.turns["end"])
            rows = np.empty(max(2 * (len(live) + count), _ROWS), WAITING)
            rows[: len(live)] = picked(self.rows, live)
            lengths = self.turns["end"] - self.turns["start"]
            self.turns["end"] = np.cumsum(lengths)
            self.turns["start"] = self.turns["end"] - lengths
            self.rows, self._end = rows, len(live)
        return self._end


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
