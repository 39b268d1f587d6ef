"""The order of waiting sequences, in fair turns between principals, as arrays; pure logic, callers pass the time.

Two levels decide. Principals take turns by tokens (`Flows`): each gets `QUANTUM` tokens per round, so that every
waiting principal gets an equal part of the device. Within a principal the request that is due first is served first. A
request is due some time after its arrival, `SLACK` times its own compute time: a short text goes ahead of a long one
that came slightly earlier, and an old request goes ahead of every new one. A request that has had `REQUEST_TURN` tokens
is due anew, as if the rest of it had just arrived: a text never waits for a whole fan-out.

A batch holds sequences of one host. The first sequence in turn decides which; the others come in turn, too, ahead of
other hosts' sequences of the same principal, which pays for them from its own turns. With several hosts, a token counts
by its compute time, as a share of the slowest host's token (`Host.weight`).

The queue is bounded by the estimated wait of a new request, in seconds, if all principals are served equally: until its
principal has been served all of its waiting tokens, and `min(own tokens, COUNTED × max_seconds)` of the request. One
principal alone can fill the queue; a small request of another principal still finds a short wait. The principal with
the most waiting work is refused first. If many principals ask one text each, all waiting work counts for each of them,
so the whole queue is bounded for any number of principals (`Backlog`).
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_server.access.principal import RESERVED
from onebert_server.engine.queue.backlog import INFINITY, Backlog, QueueLimits, asked_of, questions
from onebert_server.engine.queue.beside import Beside
from onebert_server.engine.queue.candidates import Room, choose
from onebert_server.engine.queue.flows import Flows, Numbers
from onebert_server.engine.queue.order import Indices, first_of_each, picked
from onebert_server.engine.queue.waiting import Texts, Waiting, joined
from onebert_store.errors import OneBertError

# Tokens that a principal is served per turn, about one sentence: even a small batch holds work of a dozen principals,
# and a newcomer is in the next batch.
QUANTUM = 32

# Beside a batch at most so many principals with a text too long for it are passed over.
MAX_PASSED_OVER = 16

Bounds = Callable[[int], tuple[int, int]]
"""Returns the bounds on a batch of a host: on computed tokens, the sum of its sequences' costs, and on all tokens."""


class _New(NamedTuple):
    """Requests that were put: their sequences, how many each has, their slack, due times and deadlines."""

    texts: Texts
    counts: NDArray[Any]
    slack: NDArray[np.float64]
    due: NDArray[np.float64]
    deadlines: NDArray[np.float64]


class FairQueue:
    """Requests with waiting sequences; not thread-safe, but any thread may `check`.

    Attributes:
        backlog: the waiting work; the engine keeps its `seconds_per_token`.
        names: of the principals in `WAITING`, while they wait.
    """

    def __init__(self, limits: QueueLimits, hosts: int = 1) -> None:
        self._flows = Flows(QUANTUM, RESERVED)
        self._waiting = Waiting()
        self._tokens_of = np.zeros(hosts, np.int64)
        # Without an order yet: a batch that takes all needs none.
        self._new: list[_New] = []
        self._cost = 0
        self._earliest = INFINITY
        self.backlog = Backlog(self._flows, limits)
        self.names = self._flows.names

    @property
    def sequences(self) -> int:
        return self.backlog.sequences

    @property
    def tokens(self) -> int:
        return self.backlog.tokens

    @property
    def seconds(self) -> float:
        """Estimated seconds of all waiting work."""
        return self.backlog.work * self.backlog.seconds_per_token

    def flood_seconds(self, each: float) -> float:
        """Returns the seconds of waiting work in a flood, if each waiting principal has `each` seconds of it; else 0.

        Some need twice as much, since `Backlog.least` estimates. The server's own work does not count. A short request
        that is next, among larger ones than a batch, does not wait for a longer batch of these.
        """
        per_token = self.backlog.seconds_per_token
        # The least of anybody's is no more than all.
        if not self.backlog.work or self.backlog.work * per_token < each or self.backlog.least() * per_token < each:
            return 0.0
        head = self._head()
        first, turns = self._firsts()[head], self._waiting.turns
        of_first = int(turns["work"][turns["request"] == turns["request"][first]].sum()) * per_token
        mean = self.seconds / self._waiting.requests
        return 0.0 if of_first < each < mean else self.backlog.others * per_token

    def check(self, principal: str) -> None:
        """Raises QueueFull or OverShare if `put` would refuse the smallest request of this principal; cheap."""
        self.backlog.check(principal)

    def put(
        self, requests: NDArray[Any], texts: Texts, principals: Sequence[str], now: float
    ) -> dict[int, OneBertError]:
        """Queues requests that were never in the queue, each with all of its texts or none; see `questions`.

        A full queue never refuses the reserved principal.

        Args:
            requests: REQUEST, each with at least one text.
            texts: in the order of the requests.

        Returns:
            The errors of the refused requests by their place: TooLarge if one exceeds the whole queue; DeadlineExceeded
            if its deadline has passed; QueueFull and OverShare if the queue is too full, OverShare if it holds more of
            this principal than of others.
        """
        flows, counts = self._flows.numbers(principals)[requests["principal"]], requests["sequences"]
        texts.rows["principal"] = flows.repeat(counts)
        slack, errors = self._admit(requests, flows, texts.rows, now)
        if errors:
            admitted = np.ones(len(requests), np.bool_)
            admitted[list(errors)] = False
            texts, requests, slack = texts.part(admitted.repeat(counts)), requests[admitted], slack[admitted]
        if len(requests):
            self._new.append(_New(texts, requests["sequences"], slack, slack + now, requests["deadline"]))
            self._cost += int(texts.rows["cost"].sum())
            self._tokens_of += self._by_host(texts.rows)
            self._earliest = min(self._earliest, float(requests["deadline"].min()))
        return errors

    def fills(self, bounds: Bounds) -> bool:
        """Whether more computed tokens of the next batch's host may wait than the batch takes."""
        if not self.sequences:
            return False
        host = self._next_host()
        return int(self._tokens_of[host]) > bounds(host)[0]

    def others_wait(self, principals: Collection[str]) -> bool:
        """Whether anybody but these principals waits."""
        if not self.sequences:
            return False
        return int(np.count_nonzero(self._flows.table["sequences"])) > len(self._waiting_of(principals))

    def may_run_beside(self, principals: Collection[str], batch: Beside) -> bool:
        """Whether `take_beside` may take work of some of these principals, unless their next texts are too long."""
        self._list()
        flows = self._waiting_of([principal for principal in principals if principal not in batch.served])
        return bool((self._flows.table["round"][flows] <= self._flows.least() + _rounds(batch)).any())

    def take(self, bounds: Bounds, now: float) -> Texts:
        """Takes the next batch, of one host.

        A first sequence over either bound still goes, alone. A batch that takes all that waits has the order of `put`.
        """
        tokens = self.backlog.tokens
        if not tokens:
            return self._waiting.clear()
        host = self._next_host()
        most = bounds(host)
        if tokens <= most[1] and tokens == self._tokens_of[host] and self._cost <= most[0]:
            return self._take_all()
        self._list()
        return self._take(self._flows.waiting(), Room(host, *most), now)

    def take_beside(self, batch: Beside, bounds: Bounds, now: float) -> Texts:
        """Takes what runs between the layers of a batch: no sequence over its room."""
        self._list()
        last = self._flows.least() + _rounds(batch)
        served, flows, table = self._waiting_of(batch.served), self._flows.waiting(), self._flows.table
        flows = self._flows.sorted(flows[(table["round"][flows] <= last) & ~np.isin(flows, served)])
        fits = (table["next"][flows[:MAX_PASSED_OVER]] <= batch.room).nonzero()[0]
        passed = flows[: fits[0] if len(fits) else MAX_PASSED_OVER]
        taken = Texts(self._waiting.rows[:0], np.empty(0, np.int32))
        if len(fits):
            host = int(table["host"][flows[fits[0]]])
            taken = self._take(flows[fits[0] :], Room(host, *bounds(host), work=batch.room, rounds=last), now)
        # They give way to others in their rounds.
        passed = np.concatenate([served, passed])
        table["listed"][passed] = self._flows.events(len(passed))
        return taken

    def expire(self, now: float) -> NDArray[Any]:
        """Removes each request whose deadline has passed, and returns their rows; forgets who left long ago."""
        self.backlog.forget_left(now)
        if now < self._earliest:
            return self._waiting.rows[:0]
        self._list()
        late = self._drop(self._waiting.turns["deadline"] <= now)
        self._earliest = float(self._waiting.turns["deadline"].min(initial=INFINITY))
        return late

    def note_left(self, principal: str, waited: float, now: float) -> None:
        """See `Backlog.note_left`."""
        self.backlog.note_left(principal, waited, now)

    def remove(self, requests: NDArray[Any]) -> NDArray[Any]:
        """Removes what waits of requests; returns these rows."""
        self._list()
        return self._drop(np.isin(self._waiting.turns["request"], requests))

    def clear(self) -> NDArray[Any]:
        """Removes everything; returns the rows."""
        self._list()
        return self._drop(np.ones(len(self._waiting.turns), np.bool_))

    def _admit(
        self, requests: NDArray[Any], flows: Numbers, rows: NDArray[Any], now: float
    ) -> tuple[NDArray[np.float64], dict[int, OneBertError]]:
        """Returns the slack of each request, and the errors of the refused ones; see `put`."""
        if len(self._tokens_of) == 1:
            return self.backlog.admit(asked_of(requests, flows, rows), now)
        begins = questions(requests)
        slack, errors = self.backlog.admit(asked_of(requests, flows, rows, begins), now)
        of = begins.cumsum() - 1
        return slack[of], errors and {place: errors[n] for place, n in enumerate(of.tolist()) if n in errors}

    def _by_host(self, rows: NDArray[Any]) -> Any:
        tokens, hosts = rows["tokens"], len(self._tokens_of)
        return int(tokens.sum()) if hosts == 1 else np.bincount(rows["host"], tokens, hosts).astype(np.int64)

    def _waiting_of(self, principals: Collection[str]) -> Numbers:
        """Returns the numbers of these principals, if something of theirs waits."""
        numbers = [number for name in principals if (number := self._flows.number(name)) is not None]
        flows = np.array(numbers, np.intp)
        return flows[self._flows.table["sequences"][flows] > 0]

    def _head(self) -> int:
        self._list()
        return int(self._flows.sorted(self._flows.waiting())[0])

    def _next_host(self) -> int:
        hosts = self._tokens_of.nonzero()[0]
        return int(hosts[0]) if len(hosts) == 1 else int(self._flows.table["host"][self._head()])

    def _firsts(self) -> Indices:
        """Returns the place of each principal's first turn of a request; -1 if nothing of it waits."""
        return self._waiting.firsts(np.arange(len(self._waiting.turns)), len(self._flows.table))

    def _lead(self, flows: Numbers, firsts: Indices, events: NDArray[np.int64]) -> None:
        """Notes the first turns of requests of principals in `_flows`."""
        turns = self._waiting.turns
        work = self._waiting.rows["work"][turns["start"][firsts]]
        self._flows.lead(flows, (turns["due"][firsts], work, turns["host"][firsts]), events)

    def _list(self) -> None:
        """Gives turns to what was put since the last call, and to its principals."""
        if not self._new:
            return
        listed, (texts, *columns) = len(self._waiting.turns), zip(*self._new, strict=True)
        self._new.clear()
        self._waiting.add(joined(texts), *map(np.concatenate, columns))
        turns = self._waiting.turns
        new = np.arange(listed, len(turns))
        if self._waiting.several:
            new = new[turns["ordinal"][listed:] == 0]
        flows, due, events = turns["principal"][new], turns["due"][new], self._flows.events(len(new))
        at = first_of_each(flows, len(self._flows.table))
        self._flows.come(flows[at], events[at])
        # As if they had come one after another: each that is due before all earlier ones leads for a while.
        while len(earlier := (due < self._flows.table["due"][flows]).nonzero()[0]):
            new, flows, due, events = new[earlier], flows[earlier], due[earlier], events[earlier]
            at = first_of_each(flows, len(self._flows.table))
            self._lead(flows[at], new[at], events[at])

    def _take_all(self) -> Texts:
        """Takes all that waits, of one host: no order needs to be known."""
        self._flows.serve_all()
        self.backlog.forget_all()
        self._tokens_of[:], self._cost = 0, 0
        texts = [self._waiting.clear()] if self._waiting.sequences else []
        texts += [new.texts for new in self._new]
        self._new.clear()
        return joined(texts)

    def _take(self, allowed: Numbers, room: Room, now: float) -> Texts:
        batch = choose(self._waiting, self._flows, allowed, room, now)
        flows, rounds, table = batch.flows, batch.rounds, self._flows.table
        taken = self._waiting.serve(batch.turns, batch.rows, now)
        work, tokens = taken.rows["work"].astype(np.int64), len(taken.ids)
        self._cost -= int(taken.rows["cost"].sum())
        self.backlog.count(flows, np.full(len(flows), -1), -tokens, -work)
        self._tokens_of[room.host] -= tokens
        np.subtract.at(table["credit"], flows, work)
        table["held_back"][flows] = False
        table["held_back"][flows[batch.overtakes]] = True
        self._settle(flows, rounds)
        if room.rounds == INFINITY:
            # The round of the last one who was served, or of who still waits for a batch of another host.
            waiting = table["round"][self._flows.waiting()]
            self._flows.round = max(self._flows.round, int(waiting.min(initial=rounds[-1])))
        return taken

    def _settle(self, flows: Numbers, rounds: NDArray[np.int64]) -> None:
        """Moves the turns of principals who were served a sequence each time, in these rounds."""
        table, events = self._flows.table, self._flows.events(len(flows))
        last = len(flows) - 1 - first_of_each(flows[::-1], len(table))
        served = flows[last]
        firsts = self._firsts()[served]
        gone, left = (firsts < 0).nonzero()[0], (firsts >= 0).nonzero()[0]
        self._flows.leave(served[gone], rounds[last[gone]])
        self._lead(served[left], firsts[left], events[last[left]])
        # A principal comes to its round by the last sequence that was served in another one.
        moved = rounds != table["round"][flows]
        table["listed"][flows[moved]] = events[moved]

    def _drop(self, gone: NDArray[np.bool_]) -> NDArray[Any]:
        """Removes the turns of some requests, and returns their rows; this costs their principals nothing."""
        if not gone.any():
            return self._waiting.rows[:0]
        turns, rows = picked(self._waiting.turns, gone), self._waiting.drop(gone)
        sequences = turns["end"] - turns["start"]
        self.backlog.count(turns["principal"], -sequences, -int(turns["tokens"].sum()), -turns["work"])
        self._tokens_of -= self._by_host(turns)
        self._cost -= int(turns["cost"].sum())
        flows = np.unique(turns["principal"])
        firsts = self._firsts()[flows]
        left = firsts >= 0
        self._flows.leave(flows[~left], self._flows.table["round"][flows[~left]])
        self._lead(flows[left], firsts[left], self._flows.events(int(left.sum())))
        return rows


def _rounds(batch: Beside) -> int:
    """Returns by how many rounds a principal may be ahead of all others while a batch runs."""
    return int(batch.room / QUANTUM)
