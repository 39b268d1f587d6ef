"""A request to the engine, from its submission to its end: the arrays of its sequences, and how far they are."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.sequences import Sequences
from onebert_server.engine.block import ENDED, SEQUENCE, Block, Ended
from onebert_server.engine.host import Host, Launched
from onebert_store.errors import OneBertError

# Computed tokens of a piece, about two sentences: even a small batch holds work of several principals.
QUANTUM = 64

_RECORD = f"V{SEQUENCE.itemsize}"


class Request:
    """A request of one host; its sequences are taken in their order.

    Attributes:
        lane: the `Lane` of its edge.
        principal: its name.
        idle: whether it is computed only while nothing else waits (a shadow's).
        sequences, ids: its own ones of the block.
        first_text: number of the block's first text, unlike any of another block.
        tokens, costs: sums over the sequences before each; `costs` are of computed tokens, fewer if it shares a text.
        flow: the `Flow` in which it waits.
        waits: whether something of it waits.
        taken: sequences that no longer wait.
        left: sequences that wait or run.
        began: start of its first batch.
        gone: whether it gets no logits; it then ends with `error`, or nobody waits for it.
        logits: of some sequences: the place of the first, the sizes, and the values end to end.
        span, batches: its trace, and those of its batches.
    """

    __slots__ = (
        *("lane", "number", "host", "principal", "deadline", "submitted", "idle", "sequences", "ids", "first_text"),
        *("tokens", "costs", "flow", "waits", "taken", "left", "began", "gone", "error", "span", "batches", "logits"),
    )

    flow: Any

    def __init__(
        self,
        lane: Any,
        fields: Sequence[Any],
        principal: str,
        sequences: NDArray[Any],
        ids: NDArray[np.int32],
        first_text: int,
        lengths: Sequence[int],
    ) -> None:
        """`fields`: of REQUEST."""
        self.number, self.host, _, self.left, _, self.deadline, self.submitted, self.idle = fields
        self.lane, self.principal, self.sequences, self.ids = lane, principal, sequences, ids
        self.first_text = first_text
        self.tokens = self.costs = [0, *accumulate(lengths)]
        self.waits, self.taken, self.began, self.gone = self.left > 0, 0, self.submitted, False
        self.error: OneBertError | None = None
        self.span: Any = None
        self.batches: list[Any] = []
        self.logits: list[tuple[int, Array, NDArray[np.float32]]] = []

    def serve(self, room: "Room", lead: float) -> list[int]:
        """Puts pieces into a batch until they cost `lead`: then another one was served less.

        Returns their costs: at least one, unless no more fits. A late request leaves the queue.
        """
        first, costs, tokens, pieces = self.taken, self.costs, self.tokens, list[int]()
        if self.deadline <= room.now:
            room.late.append((self, first))
            self.take(len(self.sequences))
            return pieces
        stop, end = first, len(self.sequences)
        while not pieces or (stop < end and room.cost > 0 and costs[stop] - costs[first] < lead):
            start, stop = stop, bisect_right(costs, costs[stop] + min(room.cost, QUANTUM), stop) - 1
            # The tokens of texts that several tasks share may be many more than are computed.
            stop = max(min(stop, bisect_right(tokens, tokens[start] + room.tokens, start) - 1), start + 1)
            cost, size = costs[stop] - costs[start], tokens[stop] - tokens[start]
            if (pieces or room.parts) and (cost > room.cost or size > room.tokens):
                stop = start
                break
            pieces.append(cost)
            room.cost -= cost
            room.tokens -= size
        if pieces:
            room.parts[self] = self, room.parts.get(self, (self, first))[1], stop
            self.take(stop)
        return pieces

    def take(self, stop: int) -> None:
        """Notes that the sequences before `stop` no longer wait."""
        first, self.taken, self.waits = self.taken, stop, stop < len(self.sequences)
        self.flow.count(first - stop, self.tokens[first] - self.tokens[stop], self.costs[first] - self.costs[stop])

    def lose(self, error: OneBertError | None) -> None:
        """Notes that it gets no logits, but an error if somebody waits for it."""
        if not self.gone:
            self.gone, self.error = True, error
            self.logits.clear()

    def add(self, first: int, sizes: Array, values: NDArray[np.float32]) -> None:
        """Adds the `logits` of some sequences."""
        self.left -= len(sizes)
        if not self.gone:
            self.logits.append((first, sizes, values))


class Room:
    """A batch while it is filled.

    Attributes:
        cost, tokens: the computed tokens, and all tokens, for which there is room. A first sequence over either still
            goes, alone.
        parts: by request, as of `Taken`.
        late: requests whose deadline has passed, with the first sequence that waited.
    """

    def __init__(self, cost: float, tokens: float, now: float) -> None:
        self.cost, self.tokens, self.now = cost, tokens, now
        self.parts: dict[Request, tuple[Request, int, int]] = {}
        self.late: list[tuple[Request, int]] = []


def requests_of(lane: Any, block: Block, hosts: Sequence[Host], first_text: int) -> list[Request]:
    """Returns the requests of a block; `first_text`: the number of its first text."""
    requests, sequences, ids = list[Request](), block.sequences, block.ids
    lengths, row, token = sequences["tokens"].tolist(), 0, 0
    # Texts that differ have numbers in their order.
    shares = bool((sequences["text"] != np.arange(len(sequences))).any())
    for place, fields in enumerate(block.requests.tolist()):
        stop = row + fields[3]
        of_request = lengths[row:stop]
        end = token + sum(of_request)
        name = block.principals[fields[2]].name
        request = Request(lane, fields, name, sequences[row:stop], ids[token:end], first_text, of_request)
        if shares and len(of_request) > 1:
            texts = request.sequences
            costs = hosts[request.host].passes.costs(texts["slot"], texts["tokens"], texts["text"])
            request.costs = [0, *accumulate(costs.tolist())]
        if block.spans:
            request.span = block.spans[place]
        requests.append(request)
        row, token = stop, end
    return requests


def hold_rows(hosts: Sequence[Host], block: Block, requests: Sequence[Request]) -> set[Request]:
    """Counts a use of each row of a block; returns the requests that miss a row, without a use of their other ones."""
    missing, fresh = set[Request](), not block.requests["waits"].all()
    for number, host in enumerate(hosts):
        rows, of_host = block.sequences, requests
        if len(hosts) > 1:
            of_host = [request for request in requests if request.host == number]
            rows = np.concatenate([rows[:0], *(request.sequences for request in of_host)])
        held = host.bank.hold(rows["slot"], rows["generation"], fresh)
        if held.all():
            continue
        start = 0
        for request in of_host:
            of_request = held[start : start + request.left]
            start += request.left
            if not of_request.all():
                missing.add(request)
                host.bank.let_go(request.sequences["slot"][of_request])
    return missing


def let_rows_go(hosts: Sequence[Host], request: Request, first: int) -> None:
    """Ends the uses of a request's rows from its sequence `first` on."""
    hosts[request.host].bank.let_go(request.sequences["slot"][first:])


def ended_of(requests: Sequence[Request], now: float) -> Ended:
    """Returns the answers and errors of requests that end now."""
    rows, errors, batches = list[tuple[int, int, int, float, float]](), list[OneBertError](), dict[int, list[Any]]()
    sizes, values = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    for request in requests:
        error, count = -1, len(request.sequences)
        if request.error is not None:
            error, count = len(errors), 0
            errors.append(request.error)
        # A batch may end behind a later one.
        for _, of_part, logits in sorted(request.logits, key=itemgetter(0)):
            sizes.append(of_part)
            values.append(logits)
        if request.span is not None:
            batches[request.number] = request.batches
        rows.append((request.number, error, count, request.began, now))
    outputs = np.concatenate(sizes, dtype=np.int32, casting="same_kind")
    return Ended(np.array(rows, ENDED), outputs, np.concatenate(values), errors, batches)


class Taken:
    """Sequences of one host that are computed together: slices of requests, as (request, first, stop).

    Attributes:
        inputs: what is computed.
        slots: of their rows.
        num_tokens: tokens; those that are computed once for several sequences count for each.
        started, launched: of its pass, since when in seconds of `time.monotonic()`.
    """

    started: float
    launched: Launched

    def __init__(self, parts: Sequence[tuple[Request, int, int]]) -> None:
        self.parts, self.host, self.num_tokens = parts, parts[0][0].host, 0
        rows, ids, texts = list[Array](), list[Array](), list[Array]()
        for request, first, stop in parts:
            start, end = request.tokens[first], request.tokens[stop]
            self.num_tokens += end - start
            ids.append(request.ids[start:end])
            rows.append(request.sequences[first:stop])
            texts.append(np.add(rows[-1]["text"], request.first_text, dtype=np.int64))
        # Views whose rows have no fields: numpy joins them ten times as fast.
        joined = rows[0] if len(rows) == 1 else np.concatenate([array.view(_RECORD) for array in rows]).view(SEQUENCE)
        self.slots: Array = joined["slot"]
        self.inputs = Sequences(np.concatenate(ids), joined["tokens"], joined["second"], np.concatenate(texts))

    def alone(self) -> "list[Taken]":
        """Returns the sequences of each request."""
        return [Taken([part]) for part in self.parts]

    def halves(self) -> "tuple[Taken, Taken]":
        """Returns the first and the second half of one request's sequences."""
        [(request, first, stop)] = self.parts
        middle = (first + stop) // 2
        return Taken([(request, first, middle)]), Taken([(request, middle, stop)])
