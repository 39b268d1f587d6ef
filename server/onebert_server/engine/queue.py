"""The order of waiting sequences, in fair turns between principals; pure logic, callers pass the time.

Two levels decide (see `Turns`). Principals take turns by tokens: each gets `QUANTUM` tokens per round, so that every
waiting principal gets an equal part of the device. Within a principal the request that is due first is served first. A
request is due some time after its arrival, `SLACK` times its own compute time: a short text goes ahead of a long one
that came slightly earlier, and an old request goes ahead of every new one. A request that has had `REQUEST_TURN` tokens
is due anew, as if the rest of it had just arrived: a text never waits for a whole fan-out.

A batch holds sequences of one base. The first sequence in turn decides which; `Turns` orders the others. With several
bases, a token counts by its compute time, as a share of the slowest base's token (`Request.work`).

The queue is bounded by the estimated wait of a new request, in seconds, if all principals are served equally: until its
principal has been served all of its waiting tokens, and `min(own tokens, COUNTED × max_seconds)` of the request. One
principal alone can fill the queue; a small request of another principal still finds a short wait. The principal with
the most waiting work is refused first. If many principals ask one text each, all waiting work counts for each of them,
so the whole queue is bounded for any number of principals.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import ceil

from onebert_server.access.principal import RESERVED
from onebert_server.engine.beside import Beside
from onebert_server.engine.host import Host
from onebert_server.engine.request import Request
from onebert_server.fairness.agenda import Agenda
from onebert_server.fairness.shares import Backlog, Shares
from onebert_server.fairness.turns import Turns
from onebert_server.limits import MAX_QUEUE_SEQUENCES, MAX_QUEUE_TOKENS
from onebert_store.errors import DeadlineExceeded, OverShare, QueueFull, TooLarge

# Tokens that a principal is served per turn, about one sentence: even a small batch holds work of a dozen principals,
# and a newcomer is in the next batch.
QUANTUM = 32
# Tokens that a request is served before the rest of it is due anew.
REQUEST_TURN = 2048

# Beside a batch at most so many principals with a text too long for it are passed over.
MAX_PASSED_OVER = 16

# A new request counts with its own tokens, up to this share of the longest wait: a larger one is served in many turns,
# beside others of its kind.
COUNTED = 0.25

# A request lets later and shorter requests go first for this many times the compute time of its turn.
SLACK = 16.0
# That time is at most this share of the longest wait: otherwise the bound in seconds would mean little.
MAX_SLACK = 0.5

# Seconds for which we remember that a principal's clients left, and the number of principals.
REMEMBERED = 10.0
MAX_REMEMBERED = 1024
# A client that leaves before this share of the longest wait had other reasons, such as the end of its program; a
# shorter wait would not have kept it.
LEFT_FOR_WAITING = 0.5

INFINITY = float("inf")

Bounds = Callable[[Host], tuple[int, int]]
"""Returns the bounds on a batch of a base: on computed tokens, the sum of its sequences' costs, and on all tokens."""


@dataclass(frozen=True)
class QueueLimits:
    """Bounds on waiting work.

    Attributes:
        max_sequences, max_tokens: totals. A principal with waiting work may hold no more than is left free.
        max_seconds: longest estimated wait that a new request may find.
    """

    max_sequences: int = MAX_QUEUE_SEQUENCES
    max_tokens: int = MAX_QUEUE_TOKENS
    max_seconds: float = INFINITY


@dataclass
class Progress:
    """The progress of a request through the queue.

    Attributes:
        slack: seconds between the moment when one of its turns begins to wait and the moment when it is due.
        late: its place among the deadlines; None if it has no deadline.
        next: index of its next sequence.
        turn: tokens that are left of its turn.
    """

    slack: float
    late: int | None = None
    next: int = 0
    turn: int = REQUEST_TURN


class FairQueue:
    """Requests with waiting sequences; not thread-safe, but any thread may `check`.

    Attributes:
        sequences, tokens: totals over all principals.
        seconds_per_token: the estimate that turns waiting work into seconds; the engine keeps it.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.sequences = self.tokens = self._work = 0
        self.seconds_per_token = 0.0
        self._limits = limits
        self._progress: dict[Request, Progress] = {}
        self._turns: Turns[Request] = Turns(QUANTUM, lambda request: request.work[self._progress[request].next])
        self._deadlines: Agenda[Request] = Agenda()
        self._tokens_of: Counter[Host] = Counter()
        # All waiting work but the server's own.
        self._sequences, self._tokens = Shares(limits.max_sequences), Backlog(limits.max_tokens)
        # Principals whose clients left -> (seconds that the last one had waited, time when it left).
        self._patience: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def seconds(self) -> float:
        """Estimated seconds of all waiting work."""
        return self._work * self.seconds_per_token

    def flood_seconds(self, each: float) -> float:
        """Returns the seconds of waiting work in a flood, if each waiting principal has `each` seconds of it; else 0.

        Some need twice as much, since `Backlog.least` estimates. The server's own work does not count. A short request
        that is next, among larger ones than a batch, does not wait for a longer batch of these.
        """
        first = self._turns.first()
        if first is None or self._tokens.least() * self.seconds_per_token < each:
            return 0.0
        of_first = sum(first.work[self._progress[first].next :]) * self.seconds_per_token
        mean = self.seconds / len(self._progress)
        return 0.0 if of_first < each < mean else self._tokens.total * self.seconds_per_token

    def check(self, principal: str) -> None:
        """Raises QueueFull or OverShare if `put` would refuse the smallest request of this principal; cheap."""
        self._refuse(principal, 1, 1, self._wait(principal, min(1, self._counted)), late=False)

    def put(self, requests: Sequence[Request], now: float) -> None:
        """Queues requests that were never in the queue, all of them or none; one caller's, each of another base.

        A full queue never refuses the reserved principal.

        Raises:
            TooLarge, DeadlineExceeded: they exceed the whole queue, or their deadline has passed.
            QueueFull, OverShare: the queue is too full; for OverShare it holds more of this principal than of others.
        """
        principal, deadline = requests[0].principal, requests[0].deadline
        amounts = [_amounts(request) for request in requests]
        sequences, tokens, work = amounts[0] if len(amounts) == 1 else map(sum, zip(*amounts, strict=True))
        if sequences > self._limits.max_sequences or tokens > self._limits.max_tokens:
            raise TooLarge("the request holds more than the server's whole queue; send it in parts")
        if now >= deadline:
            raise DeadlineExceeded("the request's time was over before its work began")
        wait = self._wait(principal, work)
        spare = deadline - now - wait - work * self.seconds_per_token
        if work > self._counted:
            wait = self._wait(principal, self._counted)
        self._refuse(principal, sequences, work, wait, late=spare < 0)
        slack = self._slack(work, spare)
        for request, of_request in zip(requests, amounts, strict=True):
            progress = self._progress[request] = Progress(slack)
            if deadline < INFINITY:
                progress.late = self._deadlines.put(deadline, request)
            self._turns.put(request, principal, now + slack, request.host)
            self._tokens_of[request.host] += of_request[1]
            self._count(request, *of_request)

    def fills(self, bounds: Bounds) -> bool:
        """Whether more computed tokens of the next batch's base may wait than the batch takes."""
        first = self._turns.first()
        return first is not None and self._tokens_of[first.host] > bounds(first.host)[0]

    def others_wait(self, principals: Collection[str]) -> bool:
        """Whether anybody but these principals waits."""
        return self._turns.others_wait(principals)

    def may_run_beside(self, principal: str, batch: Beside) -> bool:
        """Whether `take_beside` may take a waiting principal's work, unless its next text is too long."""
        return principal not in batch.served and self._turns.may_go_ahead(principal, _rounds(batch))

    def take(self, bounds: Bounds, now: float) -> list[tuple[Request, int]]:
        """Takes the next batch: requests of one base, with the index of the sequence that was taken.

        A first sequence over either bound still goes, alone.
        """
        first = self._turns.first()
        return [] if first is None else self._take(first, bounds, now)

    def take_beside(self, batch: Beside, bounds: Bounds, now: float) -> list[tuple[Request, int]]:
        """Takes what runs between the layers of a batch: no sequence over its room."""
        with self._turns.ahead(_rounds(batch), batch.served) as pass_over:
            for _ in range(MAX_PASSED_OVER):
                request = self._turns.first()
                if request is None:
                    break
                if request.work[self._progress[request].next] <= batch.room:
                    return self._take(request, bounds, now, batch.room)
                pass_over(request)
        return []

    def _take(self, first: Request, bounds: Bounds, now: float, room: float = INFINITY) -> list[tuple[Request, int]]:
        taken: list[tuple[Request, int]] = []
        host = first.host
        request: Request | None = first
        max_cost, max_tokens = bounds(host)
        self._tokens_of[host] -= max_tokens
        while request is not None:
            progress = self._progress[request]
            length, cost = request.lengths[progress.next], request.costs[progress.next]
            if taken and (cost > max_cost or length > max_tokens or request.work[progress.next] > room):
                break
            taken.append((request, progress.next))
            max_cost -= cost
            max_tokens -= length
            self._advance(request, progress, now)
            # A text beside a batch is computed once for all its tasks, as far as they fit.
            if room == INFINITY or not self._repeats(request):
                request = self._turns.first_of(host)
        self._tokens_of[host] += max_tokens
        self._turns.hold_back()
        return taken

    def expire(self, now: float) -> list[Request]:
        """Removes and returns every request whose deadline has passed; forgets clients that left long ago."""
        while self._patience and next(iter(self._patience.values()))[1] < now - REMEMBERED:
            self._patience.popitem(last=False)
        late = []
        while (first := self._deadlines.first()) is not None and first.deadline <= now:
            self.remove(first)
            late.append(first)
        return late

    def note_left(self, principal: str, waited: float, now: float) -> None:
        """Records that a client left after so many seconds; for a while its principal may find half of that wait.

        The other half is for the running batch and for their own work. A request that would wait longer is refused at
        once, so that nothing is computed for clients that leave before the answer.
        """
        if waited < self._limits.max_seconds * LEFT_FOR_WAITING:
            return
        self._patience[principal] = waited, now
        self._patience.move_to_end(principal)
        if len(self._patience) > MAX_REMEMBERED:
            self._patience.popitem(last=False)

    def remove(self, request: Request) -> int:
        """Removes the waiting sequences of a request; returns their number."""
        progress = self._progress.get(request)
        if progress is None:
            return 0
        self._turns.remove(request)
        self._forget(request)
        left = request.lengths[progress.next :]
        self._tokens_of[request.host] -= sum(left)
        self._count(request, -len(left), -sum(left), -sum(request.work[progress.next :]))
        return len(left)

    def clear(self) -> list[Request]:
        requests = list(self._progress)
        for request in requests:
            self.remove(request)
        return requests

    def _repeats(self, request: Request) -> bool:
        """Whether the next sequence of a request has the text of an earlier one."""
        progress = self._progress.get(request)
        return progress is not None and request.costs[progress.next] < request.lengths[progress.next]

    def _advance(self, request: Request, progress: Progress, now: float) -> None:
        """Records that a request's next sequence was taken."""
        length, work = request.lengths[progress.next], request.work[progress.next]
        progress.next += 1
        progress.turn -= work
        if progress.next == len(request.lengths):
            self._turns.serve(request, work)
            self._forget(request)
        elif progress.turn > 0:
            self._turns.serve(request, work, left=True)
        else:
            progress.turn += REQUEST_TURN
            self._turns.serve(request, work, left=True, due=now + progress.slack)
        self._count(request, -1, -length, -work)

    def _forget(self, request: Request) -> None:
        self._deadlines.drop(self._progress.pop(request).late)

    def _count(self, request: Request, sequences: int, tokens: int, work: int) -> None:
        self.sequences += sequences
        self.tokens += tokens
        self._work += work
        if request.principal != RESERVED:
            self._sequences.add(request.principal, sequences)
            self._tokens.add(request.principal, work)

    @property
    def _counted(self) -> float:
        """The work of a new request that count at most for its wait."""
        return COUNTED * self._limits.max_seconds / self.seconds_per_token if self.seconds_per_token else INFINITY

    def _wait(self, principal: str, work: float) -> float:
        """Returns the seconds until a principal has been served its waiting work, and so much more.

        Until then each other principal is served as much, or all of its work.
        """
        return self._tokens.served(self._tokens.of(principal) + work) * self.seconds_per_token

    def _longest_wait(self, principal: str) -> float:
        """Returns the longest wait, in seconds, that a new request of this principal may find."""
        waited, _ = self._patience.get(principal, (INFINITY, 0.0))
        return min(waited / 2, self._limits.max_seconds)

    def _slack(self, work: int, spare: float) -> float:
        """Returns the seconds for which each turn of a request lets others go first; all turns share `spare` seconds.

        They use at most half of `spare`: more work may arrive in that time than is computed.
        """
        turns = ceil(work / REQUEST_TURN)
        own = SLACK * min(work, REQUEST_TURN) * self.seconds_per_token
        return max(min(own, MAX_SLACK * self._limits.max_seconds, spare / (2 * turns)), 0.0)

    def _refuse(self, principal: str, sequences: int, work: int, wait: float, late: bool) -> None:
        """Raises QueueFull or OverShare if so much more of a principal may not wait, or would be answered too late."""
        if principal == RESERVED or not self._tokens.principals:
            return
        fits = self._sequences.fits(principal, sequences) and self._tokens.fits(principal, work)
        if fits and wait < self._longest_wait(principal) and not late:
            return
        seconds = max(1, ceil(wait))
        if self._tokens.is_over(principal):
            raise OverShare("more of this caller's work is waiting than of others'; try again soon", seconds)
        raise QueueFull("as much work is waiting as the server holds; try again soon", seconds)


def _rounds(batch: Beside) -> int:
    """Returns by how many rounds a principal may be ahead of all others while a batch runs."""
    return int(batch.room / QUANTUM)


def _amounts(request: Request) -> tuple[int, int, int]:
    """Returns the sequences, the tokens and the work of a request."""
    tokens = sum(request.lengths)
    return len(request.lengths), tokens, tokens if request.work is request.lengths else sum(request.work)
