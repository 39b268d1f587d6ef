"""All that waits for the engine, and who may join it; pure logic, callers pass the time.

A batch is of one host, whose requests have a `Line` of their own: the line that has waited longest gives the next one.
Shadows wait beside a line, in a flow that is served while nothing else waits.

The queue is bounded by the seconds that a new request would wait: for all that waits, or, if that is less, until every
principal has been served as much as the new one's and its own waiting work. So one principal alone can fill the queue,
a small request of another one still finds a short wait, and whoever holds most is refused first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from operator import attrgetter

from onebert_server.access.principal import RESERVED
from onebert_server.engine.line import Line, Totals
from onebert_server.engine.request import Request, Room
from onebert_server.limits import MAX_QUEUE_SEQUENCES, MAX_QUEUE_TOKENS
from onebert_store.errors import DeadlineExceeded, OneBertError, OverShare, QueueFull, TooLarge

# A new request counts with its own tokens, up to this share of the longest wait: a larger one is served in pieces,
# beside others of its kind.
COUNTED = 0.25
# Tokens of shadows that may wait, and estimated seconds of a batch of them, for which a request waits that comes
# meanwhile.
MAX_SHADOW_TOKENS, SHADOW_SECONDS = 16_384, 0.006


@dataclass(frozen=True)
class QueueLimits:
    """Bounds on waiting work.

    Attributes:
        max_sequences, max_tokens: totals. A principal with waiting work may hold no more than is left free.
        max_seconds: longest estimated wait that a new request may find.
    """

    max_sequences: int = MAX_QUEUE_SEQUENCES
    max_tokens: int = MAX_QUEUE_TOKENS
    max_seconds: float = inf


class Queue(Totals):
    """All that waits, its totals without shadows; not thread-safe, but any thread may ask for a `refusal` or a total.

    Attributes:
        lines: by host.
        shadows: totals of the shadows of all lines.
    """

    def __init__(self, limits: QueueLimits, hosts: int = 1) -> None:
        self.shadows = Totals()
        self.lines = [Line(self, self.shadows) for _ in range(hosts)]
        self._limits = limits

    @property
    def seconds(self) -> float:
        """Estimated seconds of all waiting work."""
        return sum([line.seconds for line in self.lines])

    def put(self, question: Sequence[Request], now: float) -> OneBertError | None:
        """Queues the requests of one question, for several hosts, all or none; returns why none.

        That is TooLarge if they exceed the whole queue; DeadlineExceeded if their deadline has passed; QueueFull and
        OverShare if the queue is too full, OverShare if it holds more of this principal than of others. The server's
        own are never refused.
        """
        first, sequences, tokens, seconds = question[0], 0, 0, 0.0
        for request in question:
            sequences += request.left
            tokens += request.tokens[-1]
            seconds += request.costs[-1] * self.lines[request.host].seconds_per_token
        if not sequences:
            return None
        if first.idle:
            error = self._shadow_refusal(tokens)
        elif sequences > self._limits.max_sequences or tokens > self._limits.max_tokens:
            return TooLarge("the request holds more than the server's whole queue; send it in parts")
        elif now >= first.deadline:
            return DeadlineExceeded("the request's time was over before its work began")
        else:
            left = first.deadline - now
            error = self.refusal(first.principal, sequences, tokens, seconds, left) if self.sequences else None
        for request in question if error is None else ():
            line = self.lines[request.host]
            if request.idle and request.left:
                line.shadows.put(request)
            elif request.left:
                line.put(request, now)
        return error

    def take(self, now: float) -> Room | None:
        """Takes the next batch, of one host, and finds late requests on the way; None if nothing waits."""
        line = self.lines[0] if len(self.lines) == 1 else self._line()
        if line is None or not line.sequences:
            return None
        room, line.since = Room(line.batch_tokens, line.most_tokens, now), now
        while room.cost > 0 and line.sequences and line.serve(room):
            pass
        return room

    def take_shadows(self, now: float) -> Room | None:
        """Takes a small batch of shadows; None if none waits."""
        for line in self.lines if self.shadows.sequences else ():
            if line.shadows.waits:
                per_token = line.seconds_per_token
                cost = min(line.batch_tokens, SHADOW_SECONDS / per_token) if per_token else line.batch_tokens
                room = Room(cost, line.most_tokens, now)
                while room.cost > 0 and line.shadows.serve(room):
                    pass
                return room
        return None

    def fills(self) -> bool:
        """Whether more computed tokens wait for the next batch's host than the batch takes."""
        line = self._line()
        return line is not None and line.work > line.batch_tokens

    def _line(self) -> Line | None:
        """Returns the line that has waited longest."""
        return min(filter(attrgetter("sequences"), self.lines), key=attrgetter("since"), default=None)

    def _shadow_refusal(self, tokens: int) -> OneBertError | None:
        if self.shadows.tokens + tokens <= MAX_SHADOW_TOKENS:
            return None
        return QueueFull("as much work of shadows is waiting as the server holds")

    def _held(self, principal: str) -> tuple[int, int, float]:
        """Returns sequences, tokens and seconds that wait of a principal."""
        sequences, tokens, seconds = 0, 0, 0.0
        for line in self.lines:
            if (flow := line.flows.get(principal)) is not None:
                sequences += flow.sequences
                tokens += flow.tokens
                seconds += flow.work * line.seconds_per_token
        return sequences, tokens, seconds

    def refusal(
        self, principal: str, sequences: int = 1, tokens: int = 1, seconds: float = 0.0, left: float = inf
    ) -> OneBertError | None:
        """Returns why so much more of a principal may not wait, or would be answered too late; None if it may. Cheap.

        Without numbers: why the smallest request may not.
        """
        if principal == RESERVED or not (waiting := self.sequences):
            return None
        limits, total = self._limits, self.seconds
        # Whosesoever it is, half of the room stays free, and all is served in time.
        if (
            total + seconds < min(limits.max_seconds, left)
            and 2 * (waiting + sequences) <= limits.max_sequences
            and 2 * (self.tokens + tokens) <= limits.max_tokens
        ):
            return None
        of_server = self._held(RESERVED)
        others, total = waiting - of_server[0], total - of_server[2]
        if not others:
            return None
        own_sequences, own_tokens, own_seconds = self._held(principal)
        principals = sum([len(line.flows) for line in self.lines]) - (of_server[0] > 0)
        shares, counted = principals + (own_sequences == 0), min(seconds, COUNTED * limits.max_seconds)
        wait = min(total, (own_seconds + counted) * shares - counted)
        late = min(total + seconds, (own_seconds + seconds) * shares) > left
        # A principal may hold no more than is left free, as by `Shares`.
        fits = (
            own_tokens + tokens <= limits.max_tokens - (self.tokens - of_server[1])
            and own_sequences + sequences <= limits.max_sequences - others
        )
        if fits and wait < limits.max_seconds and not late:
            return None
        retry_after = max(1, ceil(wait))
        if own_seconds * principals > total > own_seconds:
            return OverShare("more of this caller's work is waiting than of others'; try again soon", retry_after)
        return QueueFull("as much work is waiting as the server holds; try again soon", retry_after)
