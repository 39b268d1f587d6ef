"""Work that waits for the engine, in seconds and by principal, and who may add to it."""

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_server.engine.queue.flows import Flows, Numbers
from onebert_server.engine.queue.waiting import REQUEST_TURN
from onebert_server.limits import MAX_QUEUE_SEQUENCES, MAX_QUEUE_TOKENS
from onebert_store.errors import DeadlineExceeded, OneBertError, OverShare, QueueFull, TooLarge

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


class Asked(NamedTuple):
    """Requests that may come to wait, as arrays; each alone, all of it or nothing."""

    flows: Numbers
    sequences: NDArray[Any]
    tokens: NDArray[Any]
    work: NDArray[Any]
    deadlines: NDArray[np.float64]


class Backlog:
    """Waiting work of principals, which have it served in equal parts. Any thread may `check`.

    Attributes:
        sequences, tokens, work: totals over all principals.
        seconds_per_token: the estimate that turns waiting work into seconds; the engine keeps it.
    """

    def __init__(self, flows: Flows, limits: QueueLimits) -> None:
        self.sequences = self.tokens = self.work = 0
        self.seconds_per_token = 0.0
        self._flows = flows
        self._limits = limits
        # Bit length of a principal's work -> [number of such principals, sum of their work]; None after a change.
        self._levels: dict[int, list[int]] | None = None
        # Principals whose clients left -> (seconds that the last one had waited, time when it left).
        self._patience: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def others(self) -> int:
        """Waiting work of all principals but the server's own."""
        return self.work - int(self._flows.table["work"][0])

    def least(self) -> int:
        """Returns the least work that a principal has waiting, or as little as half of it; 0 if nobody has any."""
        return min((2 ** (level - 1) for level, (count, _) in self._leveled().items() if count), default=0)

    def check(self, principal: str) -> None:
        """Raises QueueFull or OverShare if `admit` would refuse the smallest request of this principal; cheap."""
        if self._has_room(1, 1, 1) and principal not in self._patience:
            return
        number = self._flows.number(principal)
        self._refuse(principal, number, 1, 1, self._wait(number, min(1, self._counted)), late=False)

    def admit(self, asked: Asked, now: float) -> tuple[NDArray[np.float64], dict[int, OneBertError]]:
        """Counts the requests that may wait, one after another.

        Returns:
            The seconds for which each lets others go first; the errors of refused ones by their place. The server's own
            are never refused.
        """
        tokens, work = int(asked.tokens.sum()), int(asked.work.sum())
        slack = self._all_fit(asked, tokens, work, now)
        if slack is not None:
            self.count(asked.flows, asked.sequences, tokens, asked.work)
            return slack, {}
        slack, errors = np.zeros(len(asked.flows)), dict[int, OneBertError]()
        requests = zip(*(column.tolist() for column in asked), strict=True)
        for place, (flow, sequences, tokens, work, deadline) in enumerate(requests):
            try:
                slack[place] = self._admit(flow, sequences, tokens, work, deadline, now)
            except OneBertError as error:
                errors[place] = error
        return slack, errors

    def count(self, flows: Numbers, sequences: NDArray[Any], tokens: int, work: NDArray[Any]) -> None:
        """Counts what waits, or with negative numbers what no longer does."""
        self.sequences += int(sequences.sum())
        self.tokens += tokens
        self.work += int(work.sum())
        self._flows.count(flows, sequences, work)
        self._levels = None

    def forget_all(self) -> None:
        """Counts nothing any more."""
        self.sequences = self.tokens = self.work = 0
        self._flows.table["sequences"] = self._flows.table["work"] = 0
        self._levels = {}

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

    def forget_left(self, now: float) -> None:
        """Forgets clients that left long ago."""
        while self._patience and next(iter(self._patience.values()))[1] < now - REMEMBERED:
            self._patience.popitem(last=False)

    def _has_room(self, sequences: int, tokens: int, work: int) -> bool:
        """Whether so much more fits, whosesoever it is: half of the room stays free, and all is served in time."""
        limits, work = self._limits, self.work + work
        return (
            2 * max(self.tokens + tokens, work) <= limits.max_tokens
            and 2 * (self.sequences + sequences) <= limits.max_sequences
            and work * self.seconds_per_token < limits.max_seconds
        )

    def _all_fit(self, asked: Asked, tokens: int, work: int, now: float) -> NDArray[np.float64] | None:
        """Returns the slack of all requests if none can be refused, whatever their order; else None.

        As if each waited for all work, theirs included, and had the nearest deadline and the most work of them.
        """
        limits, per_token, names = self._limits, self.seconds_per_token, self._flows.names
        if not self._has_room(int(asked.sequences.sum()), tokens, work):
            return None
        if self._patience and any(names[number] in self._patience for number in asked.flows.tolist()):
            return None
        work += self.work
        most = int(asked.work.max())
        longest = min(SLACK * min(most, REQUEST_TURN) * per_token, MAX_SLACK * limits.max_seconds)
        needed = (work + most) * per_token + 2 * ceil(most / REQUEST_TURN) * longest
        if float(asked.deadlines.min()) <= now + needed:
            return None
        own = np.minimum(asked.work, REQUEST_TURN) * SLACK * per_token
        slack: NDArray[np.float64] = np.minimum(own, MAX_SLACK * limits.max_seconds)
        return slack

    def _admit(self, flow: int, sequences: int, tokens: int, work: int, deadline: float, now: float) -> float:
        """Counts a request, and returns its slack; see `admit`."""
        if sequences > self._limits.max_sequences or tokens > self._limits.max_tokens:
            raise TooLarge("the request holds more than the server's whole queue; send it in parts")
        if now >= deadline:
            raise DeadlineExceeded("the request's time was over before its work began")
        wait = self._wait(flow, work)
        spare = deadline - now - wait - work * self.seconds_per_token
        if work > self._counted:
            wait = self._wait(flow, self._counted)
        self._refuse(self._flows.names[flow], flow, sequences, work, wait, late=spare < 0)
        self._add(flow, sequences, tokens, work)
        return self._slack(work, spare)

    def _add(self, flow: int, sequences: int, tokens: int, work: int) -> None:
        """Counts one request in all that `count` changes, and in the levels."""
        self.sequences += sequences
        self.tokens += tokens
        self.work += work
        held = self._flows.table["work"]
        before, after = int(held[flow]), int(held[flow]) + work
        held[flow] = after
        self._flows.table["sequences"][flow] += sequences
        if flow and self._levels is not None:
            for amount, count in ((before, -1), (after, 1)):
                if amount:
                    level = self._levels.setdefault(amount.bit_length(), [0, 0])
                    level[0] += count
                    level[1] += count * amount

    def _leveled(self) -> dict[int, list[int]]:
        levels = self._levels
        if levels is None:
            held = self._flows.table["work"][1:]
            held = held[held > 0]
            lengths = np.frexp(held)[1]
            counts, sums = np.bincount(lengths), np.bincount(lengths, held)
            levels = {level: [int(counts[level]), int(sums[level])] for level in np.flatnonzero(counts).tolist()}
            self._levels = levels
        return levels

    def _served(self, amount: float) -> float:
        """Estimates the work that is served until each principal has had this amount, or all of its own work.

        The estimate is 1 to 1.21 times the true sum: it lumps together principals whose amounts have the same bit
        length as `amount`.
        """
        # A copy, so that one thread may ask while another one counts.
        return sum(min(held, count * amount) for count, held in [*self._leveled().values()])

    @property
    def _counted(self) -> float:
        return COUNTED * self._limits.max_seconds / self.seconds_per_token if self.seconds_per_token else INFINITY

    def _work_of(self, flow: int | None) -> int:
        return int(self._flows.table["work"][flow]) if flow else 0

    def _wait(self, flow: int | None, work: float) -> float:
        """Returns the seconds until a principal has been served its waiting work, and so much more.

        Until then each other principal is served as much, or all of its work.
        """
        return self._served(self._work_of(flow) + work) * self.seconds_per_token

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

    def _refuse(self, principal: str, flow: int | None, sequences: int, work: int, wait: float, late: bool) -> None:
        """Raises QueueFull or OverShare if so much more of a principal may not wait, or would be answered too late."""
        others, table, limits = self.others, self._flows.table, self._limits
        if flow == 0 or not others:
            return
        held = self._work_of(flow)
        # A principal may hold no more than is left free, as by `Shares`.
        free_work, free = limits.max_tokens - others, limits.max_sequences - self.sequences + int(table["sequences"][0])
        fits = held + work <= free_work and (int(table["sequences"][flow]) if flow else 0) + sequences <= free
        if fits and wait < self._longest_wait(principal) and not late:
            return
        seconds = max(1, ceil(wait))
        if held * sum(count for count, _ in [*self._leveled().values()]) > others:
            raise OverShare("more of this caller's work is waiting than of others'; try again soon", seconds)
        raise QueueFull("as much work is waiting as the server holds; try again soon", seconds)


def asked_of(
    requests: NDArray[Any], flows: Numbers, rows: NDArray[Any], begins: NDArray[np.bool_] | None = None
) -> Asked:
    """Returns what requests ask, or the questions that begin with some of them; WAITING `rows` are in their order."""
    counts, deadlines, tokens, work = requests["sequences"], requests["deadline"], rows["tokens"], rows["work"]
    if begins is None and len(requests) == len(rows):
        return Asked(flows, counts, tokens, work, deadlines)
    starts = counts.cumsum() - counts
    if begins is not None:
        starts, flows, deadlines = starts[begins], flows[begins], deadlines[begins]
    tokens, work = (np.add.reduceat(amounts, starts, dtype=np.int64) for amounts in (tokens, work))
    return Asked(flows, np.append(starts[1:], len(rows)) - starts, tokens, work, deadlines)


def questions(requests: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a question begins with a request of a block.

    A question to several hosts has several requests, one after another: the first one's number counts for the quota,
    if any does. All of them wait, or none; half of them would be no answer.
    """
    begins = np.ones(len(requests), np.bool_)
    before, after = requests[:-1], requests[1:]
    begins[1:] = (after["requests"] > 0) | (after["host"] == before["host"])
    for name in ("principal", "deadline", "submitted"):
        begins[1:] |= after[name] != before[name]
    return begins
