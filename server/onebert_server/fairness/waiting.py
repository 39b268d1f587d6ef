"""What waits for the engine, in two tables: sequences, and the turns in which requests have theirs served."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_server.fairness.order import Indices, begins, spread

# Tokens that a request is served before the rest of it is due anew.
REQUEST_TURN = 2048

# One sequence. request: the caller's number of its request, of no other that waits. position: in the request.
# principal: its number in `Flows`. host: index among the engine's hosts. slot: of the row in the host's bank. second:
# start of a pair's own sequence, else 0. text: equal numbers in one request are one text. start: place of the ids in
# the caller's buffer. tokens: at least one. cost: those that are computed, fewer if it shares a text with an earlier
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
    """The tables. Of turns that are due at the same time the one with the lower index comes first.

    Attributes:
        rows: WAITING; those that no turn refers to are free.
    """

    def __init__(self) -> None:
        self.rows = np.empty(_ROWS, WAITING)
        self._end = 0
        self._turns = np.empty(_TURNS, _TURN)
        self._count = 0

    @property
    def turns(self) -> NDArray[Any]:
        return self._turns[: self._count]

    @property
    def requests(self) -> int:
        """The number of requests."""
        return int(np.count_nonzero(self.turns["ordinal"] == 0))

    @property
    def cost(self) -> int:
        return int(self.turns["cost"].sum())

    def add(
        self, rows: NDArray[Any], counts: NDArray[Any], slack: NDArray[Any], deadlines: NDArray[Any], now: float
    ) -> None:
        """Adds requests with so many rows each; one lets others go first for its `slack` in seconds."""
        place = self._room(len(rows))
        self.rows[place : place + len(rows)] = rows
        self._end += len(rows)
        starts, requests, ordinals = _cut(rows["work"], counts)
        first, end = self._count, self._count + len(starts)
        if end > len(self._turns):
            self._turns = np.concatenate([self.turns, np.empty(end, _TURN)])
        turns, self._count = self._turns[first:end], end
        for name in ("request", "principal", "host"):
            turns[name] = rows[name][starts]
        for name in _AMOUNTS:
            turns[name] = (
                rows[name] if len(starts) == len(rows) else np.add.reduceat(rows[name], starts, dtype=np.int64)
            )
        turns["start"] = place + starts
        turns["end"][:-1], turns["end"][-1] = turns["start"][1:], self._end
        turns["ordinal"] = ordinals
        turns["slack"], turns["deadline"] = slack[requests], deadlines[requests]
        turns["due"] = now + turns["slack"]

    def all(self) -> NDArray[Any]:
        """Returns all rows."""
        starts, ends = self.turns["start"], self.turns["end"]
        return (
            self.rows[: self._end].copy()
            if int((ends - starts).sum()) == self._end
            else self.rows[spread(starts, ends)]
        )

    def serve(self, turns: Indices, rows: Indices, now: float) -> NDArray[Any]:
        """Takes out and returns rows, in this order; `turns` are theirs. Requests whose turn ends are due anew."""
        taken, table = self.rows[rows], self.turns
        np.add.at(table["start"], turns, 1)
        for name in _AMOUNTS:
            np.subtract.at(table[name], turns, taken[name])
        served = np.zeros(len(table), np.intp)
        served[turns] = np.arange(len(turns))
        left = np.flatnonzero(table["start"] < table["end"])
        rest = table[left]
        if rest["ordinal"].any():
            rest = _due_anew(rest, served[left - 1], now)
        self._keep(rest)
        return taken

    def drop(self, gone: NDArray[np.bool_]) -> None:
        """Takes out all turns of some requests."""
        self._keep(self.turns[~gone])

    def firsts(self, turns: Indices, principals: int) -> Indices:
        """Returns of each principal the index of its first one of some turns; -1 if it has none."""
        turns = turns[self.turns["ordinal"][turns] == 0]
        order = turns[np.argsort(self.turns["due"][turns], kind="stable")]
        firsts = np.full(principals, -1)
        # The last assignment to an element counts.
        firsts[self.turns["principal"][order[::-1]]] = order[::-1]
        return firsts

    def _keep(self, turns: NDArray[Any]) -> None:
        self._count = len(turns)
        self.turns[:] = turns
        if not self._count:
            self._end = 0

    def _room(self, count: int) -> int:
        """Returns the place of the next row, behind which there is room for so many."""
        if self._end + count > len(self.rows):
            live = spread(self.turns["start"], self.turns["end"])
            rows = np.empty(max(2 * (len(live) + count), _ROWS), WAITING)
            rows[: len(live)] = self.rows[live]
            lengths = self.turns["end"] - self.turns["start"]
            self.turns["end"] = np.cumsum(lengths)
            self.turns["start"] = self.turns["end"] - lengths
            self.rows, self._end = rows, len(live)
        return self._end


def _cut(work: NDArray[Any], counts: NDArray[Any]) -> tuple[Indices, Indices, NDArray[np.int64]]:
    """Cuts requests into turns, and returns of each its first row, its request, and its place in the request."""
    ends = np.cumsum(counts)
    starts, requests = ends - counts, np.arange(len(counts))
    long = np.flatnonzero(np.add.reduceat(work, starts, dtype=np.int64) > REQUEST_TURN)
    if not len(long):
        return starts, requests, np.zeros(len(counts), np.int64)
    ordinals, requests = np.zeros(len(work), np.int64), np.repeat(requests, counts)
    for start, end in zip(starts[long].tolist(), ends[long].tolist(), strict=True):
        # A turn ends with the row that reaches the end of its tokens; the row may reach that of the next one, too.
        before = np.arange(1, end - start)
        reached = np.cumsum(work[start : end - 1], dtype=np.int64) // REQUEST_TURN
        ordinals[start + 1 : end] = before + np.minimum(np.minimum.accumulate(reached - before), 0)
    first = np.flatnonzero(begins(requests) | begins(ordinals))
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
    return turns[np.argsort(np.where(anew, served[starts][of_request], -1), kind="stable")]
