"""The requests under way, as rows of a table, with their sequences, ids and logits; callers hold the lock."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.flat import ranges
from onebert_encoder.maths.sequences import Sequences
from onebert_server.engine.block import ENDED, Block, Ended
from onebert_server.engine.queue.order import picked, records
from onebert_server.engine.stretches import Stretches
from onebert_store.errors import OneBertError

logger = logging.getLogger("onebert.engine")

# number, host, deadline, submitted, waits: see REQUEST. began, ended: see ENDED. lane: -1 of a free row. first,
# sequences: its stretch of `_SEQUENCE`. ids, tokens: its stretch of the ids. texts: is added to the numbers of its
# texts. left: sequences without logits. running: sequences in batches under way. gone: it ends without answers as soon
# as none of them is.
_REQUEST = np.dtype(
    [(name, "i8") for name in ("number", "first", "ids", "texts")]
    + [(name, "f8") for name in ("deadline", "submitted", "began", "ended")]
    + [(name, "i4") for name in ("lane", "host", "sequences", "tokens", "left", "running")]
    + [("gone", "?"), ("waits", "?")]
)
# slot: of the row that it uses, -1 if it uses none. logits, size: its stretch of the logits, once it is computed.
_SEQUENCE = np.dtype([("slot", "i4"), ("size", "i4"), ("logits", "i8")])
_ROWS = 64

Answered = Callable[[Ended], None]
Endings = Sequence[tuple[Answered, Ended]]
"""What has ended, by the edge that gets it."""


@dataclass(eq=False)
class Traced:
    """A traced request: its span, and the spans of its batches."""

    span: Any
    batches: list[Any] = field(default_factory=list)


class Requests:
    """The table. A request has its row, the place, until it is freed; the row then is another one's.

    Attributes:
        table: `_REQUEST`.
        principals: the name of each row's.
        errors: of requests that are gone and get one, by place.
        traced: the traced requests, by place.
    """

    def __init__(self) -> None:
        self.table = _free_rows(_ROWS)
        self.principals: NDArray[np.object_] = np.empty(_ROWS, object)
        self.errors: dict[int, OneBertError] = {}
        self.traced: dict[int, Traced] = {}
        self._free = list(range(_ROWS))
        self._sequences, self._ids, self._logits = Stretches(_SEQUENCE), Stretches("i4"), Stretches("f4")
        self._lanes: dict[int, Answered] = {}
        self._numbers = count()
        self._texts = 0

    def open_lane(self, answered: Answered) -> int:
        lane = next(self._numbers)
        self._lanes[lane] = answered
        return lane

    @property
    def all(self) -> Array:
        """The places of all requests."""
        return np.flatnonzero(self.table["lane"] >= 0)

    def add(self, lane: int, block: Block, held: NDArray[np.bool_]) -> Array:
        """Adds the requests of a block, whose `held` sequences use their rows; returns their places."""
        requests, sequences = block.requests, block.sequences
        self._make_room(len(sequences), len(block.ids), 0)
        rows, added = np.zeros(len(requests), _REQUEST), np.zeros(len(sequences), _SEQUENCE)
        added["slot"] = np.where(held, sequences["slot"], -1)
        ends, tokens = requests["sequences"].cumsum(), np.zeros(len(sequences) + 1, np.int64)
        sequences["tokens"].cumsum(out=tokens[1:])
        starts = ends - requests["sequences"]
        for name in ("number", "host", "deadline", "submitted", "sequences", "waits"):
            rows[name] = requests[name]
        rows["lane"], rows["left"], rows["tokens"] = lane, requests["sequences"], tokens[ends] - tokens[starts]
        rows["began"] = rows["ended"] = requests["submitted"]
        rows["first"] = self._sequences.append(added) + starts
        rows["ids"] = self._ids.append(block.ids) + tokens[starts]
        rows["texts"], self._texts = self._texts, self._texts + len(sequences)
        places = self._places(len(requests))
        records(self.table)[places] = records(rows)
        self.principals[places] = [block.principals[index].name for index in requests["principal"].tolist()]
        for place, span in zip(places.tolist(), block.spans, strict=False):
            if span is not None:
                self.traced[place] = Traced(span)
        return places

    def inputs(self, rows: NDArray[Any]) -> Sequences:
        """Returns the inputs of WAITING rows; equal texts of one block stay equal, and no others are."""
        requests = picked(self.table, rows["request"])
        ids = self._ids.array[ranges(requests["ids"] + rows["start"], rows["tokens"])]
        return Sequences(ids, rows["tokens"], rows["second"], requests["texts"] + rows["text"])

    def slots(self, places: Array) -> Array:
        """Returns the slots of the rows that requests use, as often as they do."""
        slots = self._sequences.array["slot"][self._of(places)]
        return np.asarray(slots[slots >= 0])

    def run(self, rows: NDArray[Any], batches: int = 1) -> None:
        """Counts that one batch more, or with -1 less, computes these WAITING rows."""
        np.add.at(self.table["running"], rows["request"], batches)

    def settle(self, rows: NDArray[Any], logits: NDArray[np.float32], sizes: Array, now: float) -> Array:
        """Keeps the logits of WAITING rows; returns the places of the requests that now have all of theirs."""
        if not self._logits.fits(len(logits)):
            self._make_room(0, 0, len(logits))
        places = rows["request"]
        at = self.table["first"][places] + rows["position"]
        self._sequences.array["size"][at] = sizes
        self._sequences.array["logits"][at] = self._logits.append(logits) + sizes.cumsum() - sizes
        np.subtract.at(self.table["left"], places, 1)
        places = places[self.table["left"][places] == 0]
        answered = np.unique(places) if len(places) > 1 else places
        self.table["ended"][answered] = now
        return np.asarray(answered)

    def lose(self, places: Array, error: OneBertError) -> None:
        """Marks requests as gone with an error, unless they are gone already."""
        lost = places[~self.table["gone"][places]]
        self.table["gone"][lost] = True
        self.errors |= dict.fromkeys(lost.tolist(), error)

    def leave(self, lane: int, numbers: Sequence[int] | None) -> Array:
        """Marks requests with these numbers as gone, without an error, or a whole lane and forgets the lane.

        Returns:
            The places of the requests that were not gone before.
        """
        left = self.table["lane"] == lane
        if numbers is None:
            del self._lanes[lane]
        else:
            left &= np.isin(self.table["number"], numbers)
        places = np.flatnonzero(left)
        for place in places.tolist() if self.errors else ():
            self.errors.pop(place, None)
        places = np.asarray(places[~self.table["gone"][places]])
        self.table["gone"][places] = True
        return places

    def ended(self, places: Array, errors: Sequence[OneBertError] = ()) -> Endings:
        """Returns what edges get of requests: their logits, or if there are `errors` one for each."""
        lanes, endings = self.table["lane"][places], list[tuple[Answered, Ended]]()
        different = set(lanes.tolist())
        for lane in different:
            own = (lanes == lane).nonzero()[0] if len(different) > 1 else np.arange(len(lanes))
            own_errors = [errors[index] for index in own.tolist()] if errors else []
            endings.append((self._lanes[lane], self._ended(places[own], own_errors)))
        return endings

    def free(self, places: Array) -> None:
        """Frees the rows of requests."""
        self.table["lane"][places] = -1
        self._free += places.tolist()
        for place in self.traced.keys() & set(places.tolist()) if self.traced else ():
            del self.traced[place]

    def _ended(self, places: Array, errors: Sequence[OneBertError]) -> Ended:
        requests, rows = np.zeros(len(places), ENDED), picked(self.table, places)
        for name in ("number", "began", "ended"):
            requests[name] = rows[name]
        numbers = dict(zip(places.tolist(), rows["number"].tolist(), strict=True)) if self.traced else {}
        batches = {number: self.traced[place].batches for place, number in numbers.items() if place in self.traced}
        if errors:
            requests["error"] = np.arange(len(errors))
            return Ended(requests, np.empty(0, np.int32), np.empty(0, np.float32), errors, batches)
        requests["error"], requests["sequences"] = -1, rows["sequences"]
        sequences = picked(self._sequences.array, self._of(places))
        logits = self._logits.array[ranges(sequences["logits"], sequences["size"])]
        return Ended(requests, sequences["size"].copy(), logits, (), batches)

    def _of(self, places: Array) -> Array:
        """The indices of all sequences of requests."""
        return ranges(self.table["first"][places], self.table["sequences"][places])

    def _places(self, number: int) -> Array:
        """Takes so many free rows."""
        if number > len(self._free):
            more = max(len(self.table), number)
            self._free += range(len(self.table), len(self.table) + more)
            self.table = np.concatenate([self.table, _free_rows(more)])
            self.principals = np.concatenate([self.principals, np.empty(more, object)])
        kept = len(self._free) - number
        places = np.array(self._free[kept:], np.int64)
        del self._free[kept:]
        return places

    def _make_room(self, sequences: int, ids: int, logits: int) -> None:
        """Makes room for so many more: without room, everything moves together, over ended requests' stretches."""
        if self._sequences.fits(sequences) and self._ids.fits(ids) and self._logits.fits(logits):
            return
        table, places = self.table, self.all
        of_sequence, computed = self._sequences.array, self._of(places)
        computed = computed[of_sequence["size"][computed] > 0]
        of_sequence["logits"][computed] = self._logits.pack(
            of_sequence["logits"][computed], of_sequence["size"][computed], logits
        )
        table["ids"][places] = self._ids.pack(table["ids"][places], table["tokens"][places], ids)
        table["first"][places] = self._sequences.pack(table["first"][places], table["sequences"][places], sequences)


def deliver(endings: Endings) -> None:
    """Calls edges; one that fails touches nobody else."""
    for answered, ended in endings:
        try:
            answered(ended)
        except Exception:
            logger.exception("an edge failed to take its answers")


def _free_rows(number: int) -> NDArray[Any]:
    rows = np.zeros(number, _REQUEST)
    rows["lane"] = -1
    return rows
