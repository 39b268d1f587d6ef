"""The requests under way, as rows of a table, with the logits that they have so far; callers hold the lock."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.flat import ranges
from onebert_server.engine.block import ENDED, REQUEST, Block, Ended
from onebert_server.engine.queue.order import begins, records
from onebert_store.errors import OneBertError

logger = logging.getLogger("onebert.engine")

# began: start of its first batch. lane: -1 of a free row. left: sequences that wait or run. gone: it gets no logits.
_STATE = np.dtype([("began", "f8"), ("lane", "i4"), ("left", "i4"), ("gone", "?")])
_FREE = np.array((0.0, -1, 0, False), _STATE)
_ROWS = 64

Answered = Callable[[Ended], None]
Endings = Sequence[tuple[Answered, Ended]]
"""The requests that have ended, by the edge that gets them."""


@dataclass(eq=False)
class Traced:
    """A traced request: its span, and the spans of its batches."""

    span: Any
    batches: list[Any] = field(default_factory=list)


class Logits(NamedTuple):
    """The logits of computed sequences, flat: of which request, the position in it, and the number of logits."""

    places: Array
    positions: Array
    sizes: Array
    values: NDArray[np.float32]

    def part(self, chosen: Array) -> "Logits":
        """Selects sequences by a mask or by their indices."""
        starts, (places, positions, sizes, values) = self.sizes.cumsum() - self.sizes, self
        values = values[ranges(starts[chosen], sizes[chosen])]
        return Logits(places[chosen], positions[chosen], sizes[chosen], values)


_NO_LOGITS = Logits(*(np.empty(0, kind) for kind in ("i4", "i4", "i4", "f4")))


class Requests:
    """The table. A request has its row, the place, until it is freed; the row then is another one's.

    Attributes:
        table: REQUEST.
        state: `_STATE`.
        principals: the name of each row's.
        traced: the traced requests, by place.
    """

    def __init__(self) -> None:
        self.table, self.state = np.empty(0, REQUEST), np.empty(0, _STATE)
        self.principals: NDArray[np.object_] = np.empty(0, object)
        self.traced: dict[int, Traced] = {}
        self._free: list[int] = []
        self._grow(_ROWS)
        # Their requests are gone, and get an error.
        self._errors: dict[int, OneBertError] = {}
        # Other batches complete these requests.
        self._parts: dict[int, list[Logits]] = {}
        self._lanes: dict[int, Answered] = {}
        self._numbers = count()

    def open_lane(self, answered: Answered) -> int:
        lane = next(self._numbers)
        self._lanes[lane] = answered
        return lane

    @property
    def all(self) -> Array:
        """The places of all requests."""
        return np.flatnonzero(self.state["lane"] >= 0)

    def add(self, lane: int, block: Block, names: Sequence[str]) -> Array:
        """Adds the requests of a block, whose principals have these names; returns their places."""
        requests = block.requests
        if (missing := len(requests) - len(self._free)) > 0:
            self._grow(max(missing, len(self.table)))
        first = len(self._free) - len(requests)
        places = np.array(self._free[first:], np.int64)
        del self._free[first:]
        records(self.table)[places] = records(requests)
        state = self.state
        state["began"][places], state["left"][places] = requests["submitted"], requests["sequences"]
        state["lane"][places], state["gone"][places] = lane, False
        self.principals[places] = np.array(names, object)[requests["principal"]]
        for place, span in zip(places.tolist(), block.spans, strict=False):
            if span is not None:
                self.traced[place] = Traced(span)
        return places

    def begin(self, rows: NDArray[Any], now: float) -> Array:
        """Notes that a batch computes these WAITING rows; returns the seconds for which each new request has waited.

        A shadow waits for nothing.
        """
        begun = rows["request"][rows["position"] == 0]
        begun = begun[~self.table["waits"][begun]]
        self.state["began"][begun] = now
        return np.asarray(now - self.table["submitted"][begun])

    def settle(self, rows: NDArray[Any], values: NDArray[np.float32], sizes: Array, now: float) -> Endings:
        """Takes the logits of WAITING rows; ends the requests that now have all of theirs."""
        places = rows["request"]
        ended = self._count_off(places)
        logits = Logits(places, rows["position"], sizes, values)
        left, gone = self.state["left"][places] > 0, self.state["gone"][places]
        if self._parts or left.any() or gone.any():
            for place in set(places[left & ~gone].tolist()):
                self._parts.setdefault(place, []).append(logits.part(places == place))
            whole = [logits.part(~left & ~gone)]
            # The waiters that left get nothing: their parts would be read as those of a request that is answered.
            for place in self._parts.keys() & set(ended[~self.state["gone"][ended]].tolist()):
                whole += self._parts.pop(place)
            logits = Logits(*map(np.concatenate, zip(*whole, strict=True)))
        return self._end(ended, now, logits.part(np.lexsort((logits.positions, logits.places))))

    def drop(self, rows: NDArray[Any], now: float) -> Endings:
        """Counts WAITING rows off that are not computed; ends the requests that only waited for this."""
        return self._end(self._count_off(rows["request"]), now)

    def lose(self, places: Array, error: OneBertError) -> None:
        """Marks requests as gone with an error, unless they are gone already."""
        lost = places[~self.state["gone"][places]]
        self.state["gone"][lost] = True
        self._errors |= dict.fromkeys(lost.tolist(), error)

    def leave(self, lane: int, numbers: Sequence[int] | None) -> Array:
        """Marks requests with these numbers as gone, without an error, or a whole lane and forgets the lane.

        Returns:
            The places of the requests that were not gone before.
        """
        left = self.state["lane"] == lane
        if numbers is None:
            del self._lanes[lane]
        else:
            left &= np.isin(self.table["number"], numbers)
        places = np.flatnonzero(left)
        for place in places.tolist() if self._errors else ():
            self._errors.pop(place, None)
        places = np.asarray(places[~self.state["gone"][places]])
        self.state["gone"][places] = True
        return places

    def end(self, places: Array, now: float) -> Endings:
        """Ends requests, whatever is left of them."""
        self.state["left"][places] = 0
        return self._end(places, now)

    def _count_off(self, places: Array) -> Array:
        """Notes that a sequence of each of these requests neither waits nor runs; returns those without any, sorted."""
        np.subtract.at(self.state["left"], places, 1)
        ended = places[self.state["left"][places] == 0]
        ended.sort()
        return np.asarray(ended[begins(ended)])

    def _end(self, places: Array, now: float, logits: Logits = _NO_LOGITS) -> Endings:
        """Frees requests, sorted ones; their edges get the logits or the errors. Without either nobody waits."""
        endings = list[tuple[Answered, Ended]]()
        gone = self.state["gone"][places]
        if gone.any():
            failed = [place for place in places[gone].tolist() if place in self._errors]
            for answered, chosen in self._by_lane(np.array(failed, np.int64)):
                of_lane = np.array(failed, np.int64)[chosen]
                errors = [self._errors.pop(place) for place in of_lane.tolist()]
                endings.append((answered, self._ended(of_lane, now, _NO_LOGITS, errors)))
            self._free_places(places[gone])
            places = places[~gone]
        for answered, chosen in self._by_lane(places):
            of_lane = places[chosen]
            part = logits if len(of_lane) == len(places) else logits.part(np.isin(logits.places, of_lane))
            endings.append((answered, self._ended(of_lane, now, part)))
        self._free_places(places)
        return endings

    def _by_lane(self, places: Array) -> Iterator[tuple[Answered, Array]]:
        lanes = self.state["lane"][places]
        for lane in set(lanes.tolist()):
            yield self._lanes[lane], lanes == lane

    def _ended(self, places: Array, now: float, logits: Logits, errors: Sequence[OneBertError] = ()) -> Ended:
        ended, numbers = np.empty(len(places), ENDED), self.table["number"][places]
        ended["number"], ended["began"], ended["ended"] = numbers, self.state["began"][places], now
        ended["error"] = np.arange(len(errors)) if errors else -1
        ended["sequences"] = 0 if errors else self.table["sequences"][places]
        batches = dict[int, list[Any]]()
        if self.traced:
            of_places = zip(places.tolist(), numbers.tolist(), strict=True)
            batches = {number: self.traced[place].batches for place, number in of_places if place in self.traced}
        return Ended(ended, logits.sizes.astype(np.int32), logits.values, errors, batches)

    def _free_places(self, places: Array) -> None:
        self.state["lane"][places] = -1
        self._free += (freed := places.tolist())
        for of_place in (self.traced, self._parts):
            for place in of_place.keys() & set(freed) if of_place else ():
                del of_place[place]

    def _grow(self, more: int) -> None:
        self._free += range(len(self.table), len(self.table) + more)
        self.table = np.concatenate([self.table, np.empty(more, REQUEST)])
        self.state = np.concatenate([self.state, np.full(more, _FREE)])
        self.principals = np.concatenate([self.principals, np.empty(more, object)])


def deliver(endings: Endings) -> None:
    """Calls edges; one that fails touches nobody else."""
    for answered, ended in endings:
        try:
            answered(ended)
        except Exception:
            logger.exception("an edge failed to take its answers")
