"""The queue: fair turns against a brute-force twin, nobody starves, what waits is bounded in time and by shares."""

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_server.access.principal import RESERVED
from onebert_server.engine.beside import Beside
from onebert_server.engine.queue import (
    COUNTED,
    MAX_REMEMBERED,
    MAX_SLACK,
    QUANTUM,
    REMEMBERED,
    REQUEST_TURN,
    SLACK,
    FairQueue,
    QueueLimits,
)
from onebert_server.fairness.agenda import MAX_STALE
from onebert_store.errors import DeadlineExceeded, OneBertError, OverShare, QueueFull, TooLarge

BATCH = 1024
PER_TOKEN = 0.001
INFINITY = float("inf")


@dataclass(eq=False)
class Request:
    principal: str
    lengths: list[int] = field(default_factory=lambda: [10])
    deadline: float = float("inf")
    costs: list[int] = None
    host: object = None
    work: list[int] = None

    def __post_init__(self):
        self.costs = self.costs or self.lengths
        self.work = self.work or self.lengths


def queue(max_sequences=10**6, max_tokens=10**9, max_seconds=float("inf")):
    return FairQueue(QueueLimits(max_sequences, max_tokens, max_seconds))


def put(to, *requests, now=0.0, seconds_per_token=0.0):
    to.seconds_per_token = seconds_per_token
    for request in requests:
        to.put([request], now)
    return requests


def take(waiting, max_tokens=BATCH, now=0.0):
    return waiting.take(lambda _: (max_tokens, max_tokens), now)


def drain(waiting, max_tokens=BATCH):
    """Every batch until nothing waits."""
    batches = []
    while batch := take(waiting, max_tokens):
        batches.append(batch)
    return batches


class Twin:
    """The same rules, written without any structure: lists of what waits, scanned again and again, round by round."""

    def __init__(self):
        self.entries = []  # (principal, request, index), in the order in which they came to wait
        self.turns = []  # of those that wait [principal, round, credit], in the order in which they came to that round
        self.round = 0
        self.served = defaultdict(int)
        self.due = {}

    def put(self, request, now):
        self.entries += [(request.principal, request, index) for index in range(len(request.lengths))]
        self.due[request] = now + self.slack(request)
        if request.principal not in [turn[0] for turn in self.turns]:
            self.turns.append([request.principal, self.round + 1, QUANTUM])
        self.settle(request.principal)

    def first(self, principal):
        """Of those that are due at the same time `min` gives the one that came first."""
        return min((e for e in self.entries if e[0] == principal), key=lambda e: self.due[e[1]])

    def settle(self, principal):
        [turn] = [turn for turn in self.turns if turn[0] == principal]
        if all(e[0] != principal for e in self.entries):
            self.turns.remove(turn)
            return
        _, request, index = self.first(principal)
        before = turn[1]
        while turn[2] < request.lengths[index]:
            turn[1], turn[2] = turn[1] + 1, turn[2] + QUANTUM
        while turn[1] > self.round + 1 and turn[2] - QUANTUM >= request.lengths[index]:
            turn[1], turn[2] = turn[1] - 1, turn[2] - QUANTUM
        if turn[1] != before:
            self.turns.remove(turn)
            self.turns.append(turn)

    def slack(self, request):
        return SLACK * min(sum(request.lengths), REQUEST_TURN) * PER_TOKEN

    def take(self, max_tokens, now):
        batch = []
        while self.turns:
            turn = min(self.turns, key=lambda turn: turn[1])
            entry = self.first(turn[0])
            principal, request, index = entry
            length = request.lengths[index]
            if batch and sum(r.lengths[i] for r, i in batch) + length > max_tokens:
                break
            self.round = turn[1]
            batch.append((request, index))
            self.entries.remove(entry)
            turn[2] -= length
            self.served[request] += length
            if self.served[request] >= REQUEST_TURN:
                self.served[request] -= REQUEST_TURN
                self.due[request] = now + self.slack(request)
                behind = [e for e in self.entries if e[1] is request]
                self.entries = [e for e in self.entries if e[1] is not request] + behind
            self.settle(principal)
        return batch

    def remove(self, request):
        self.entries = [e for e in self.entries if e[1] is not request]
        if request.principal in [turn[0] for turn in self.turns]:
            self.settle(request.principal)


requests = st.builds(
    Request, st.sampled_from("abcd"), st.lists(st.integers(1, 700), min_size=1, max_size=12) | st.just([400] * 20)
)
steps = st.lists(
    requests.map(lambda one: ("put", one))
    | st.integers(1, 3000).map(lambda tokens: ("take", tokens))
    | st.integers(0, 50).map(lambda which: ("remove", which))
    | st.sampled_from([0.01, 0.1, 1.0, 10.0]).map(lambda seconds: ("wait", seconds)),
    max_size=40,
)


@pytest.mark.promise("fair-queue")
@given(steps)
def test_takes_what_its_twin_takes(done):
    real, twin, known, now = queue(), Twin(), [], 0.0
    for what, value in [*done, ("take", 10**9)]:
        if what == "put":
            known += put(real, value, now=now, seconds_per_token=PER_TOKEN)
            twin.put(value, now)
        elif what == "remove" and known:
            gone = known[value % len(known)]
            assert real.remove(gone) == sum(entry[1] is gone for entry in twin.entries)
            twin.remove(gone)
        elif what == "take":
            assert take(real, value, now) == twin.take(value, now)
        elif what == "wait":
            now += value
        assert real.sequences == len(twin.entries)
        assert real.tokens == sum(request.lengths[index] for _, request, index in twin.entries)


@pytest.mark.promise("fair-queue")
@given(st.lists(st.lists(st.integers(1, 512), min_size=30, max_size=60), min_size=2, max_size=5))
def test_principals_that_wait_are_served_equally(lengths):
    waiting, served = queue(), dict.fromkeys(map(str, range(len(lengths))), 0)
    left = {str(number): len(one) for number, one in enumerate(lengths)}
    put(waiting, *(Request(str(number), one) for number, one in enumerate(lengths)))
    while all(left.values()):
        [(request, index)] = take(waiting, 1)
        served[request.principal] += request.lengths[index]
        left[request.principal] -= 1
        assert max(served.values()) - min(served.values()) <= 2 * (QUANTUM + 512)


@pytest.mark.promise("short-beside-fanout")
def test_a_short_text_of_the_same_principal_waits_for_a_turn_and_not_for_a_fan_out():
    waiting = queue()
    put(waiting, Request("same", [512] * 160), short := Request("same"))
    before = 0
    while (short, 0) not in (batch := take(waiting)):
        before += sum(request.lengths[index] for request, index in batch)
    assert before <= REQUEST_TURN


def order(waiting):
    return [request for batch in drain(waiting) for request, _ in batch]


@pytest.mark.promise("short-before-long")
@pytest.mark.parametrize(
    ("now", "limits", "deadline"),
    [(SLACK * 400 * PER_TOKEN, {}, INFINITY), (MAX_SLACK * 2.0, {"max_seconds": 2.0}, INFINITY), (0.6, {}, 1.6)],
    ids=["its own length", "the bound in seconds", "its deadline"],
)
def test_nobody_is_put_back_by_more_than_is_left(now, limits, deadline):
    """The request takes 0.4 s: of a deadline in 1.6 s 1.2 are left, of which half is to let others go first."""
    waiting = queue(**limits)
    [long] = put(waiting, Request("same", [400], deadline), now=0.0, seconds_per_token=PER_TOKEN)
    [before] = put(waiting, Request("same", [1]), now=now - 0.02, seconds_per_token=PER_TOKEN)
    [after] = put(waiting, Request("same", [1]), now=now, seconds_per_token=PER_TOKEN)
    assert order(waiting) == [before, long, after]


def test_a_batch_is_bounded_in_what_it_computes_and_in_what_it_holds():
    """Of a text that several tasks share most may be computed once: its sequences cost less than they hold."""
    waiting = queue()
    put(waiting, Request("a", [100] * 50, costs=[100, *[1] * 49]))
    taken = [len(waiting.take(lambda _: (110, 2000), 0.0)) for _ in range(2)]
    assert taken == [11, 20], "the first costs 110, the second holds 2000"


def test_who_has_just_come_is_in_the_next_batch_beside_a_dozen_that_flood():
    waiting = queue()
    put(waiting, *(Request(f"flood {number}", [24] * 1000) for number in range(12)))
    for _ in range(3):
        take(waiting, 512)
    [short] = put(waiting, Request("other", [24]))
    assert short in [request for request, _ in take(waiting, 512)]


@pytest.mark.promise("fair-queue")
@given(st.lists(st.lists(requests, max_size=4), min_size=30, max_size=40))
def test_nobody_starves_whatever_keeps_coming(arrivals):
    """Any request is done after its own principal's work and as much of each other principal have been served."""
    waiting, served = queue(), defaultdict(int)
    put(waiting, Request("e", [200]), late := Request("e", [700]))
    for coming in [*arrivals, *[[]] * 10_000]:
        put(waiting, *coming)
        batch = take(waiting)
        for request, index in batch:
            served[request.principal] += request.lengths[index]
        if (late, 0) in batch:
            break
    assert served["e"] == 900
    # As many turns as its tokens take, and the batch under way.
    assert max(served.values()) <= 900 + 3 * (QUANTUM + 700) + BATCH


def bases_of(batch):
    return {request.host for request, _ in batch}


@given(st.lists(st.tuples(requests, st.sampled_from("xyz")), max_size=20), st.integers(1, 3000))
def test_a_batch_is_of_one_base_and_each_sequence_is_in_one(asked, max_tokens):
    waiting = queue()
    for request, host in asked:
        request.host = host
        put(waiting, request)
    batches = drain(waiting, max_tokens)
    assert all(len(bases_of(batch)) == 1 for batch in batches)
    taken = defaultdict(list)
    for request, index in (one for batch in batches for one in batch):
        taken[id(request)].append(index)
    assert taken == {id(request): [*range(len(request.lengths))] for request, _ in asked}


def test_no_principal_gets_more_of_the_device_by_the_bases_that_it_asks():
    """A token of the slow base is as much work as eight of the fast one."""
    slow, fast = (
        {"lengths": [24] * 4000, "host": "slow"},
        {"lengths": [192] * 4000, "work": [24] * 4000, "host": "fast"},
    )
    waiting, served = queue(), defaultdict(int)
    asked = [("a", slow), ("b", fast), ("c", slow), ("c", fast), *((f"more {number}", slow) for number in range(3))]
    put(waiting, *(Request(principal, **what) for principal, what in asked))
    for _ in range(120):
        batch = waiting.take(lambda host: {"slow": (480, 480), "fast": (3840, 3840)}[host], 0.0)
        assert len(batch) == 20, "every batch is full"
        for request, index in batch:
            served[request.principal] += request.work[index]
    assert max(served.values()) - min(served.values()) <= 480 + QUANTUM


def test_a_base_waits_for_one_batch_of_what_its_principal_asks_of_another():
    """Else the second of two principals would never begin a batch, and all of it would be of the base of the first."""
    waiting = queue()
    put(waiting, Request("first", [QUANTUM] * 50, host="x"))
    [late] = put(waiting, Request("second", [QUANTUM], host="y"))
    put(waiting, Request("second", [QUANTUM] * 50, host="x"))
    batches = [take(waiting, 2 * QUANTUM) for _ in range(3)]
    assert (late, 0) in [one for batch in batches for one in batch]


def test_an_empty_queue_takes_a_large_request_for_two_bases_whole():
    """As it takes one of the same work for one base; half of it would be no answer."""
    waiting = queue(max_seconds=1.0)
    waiting.seconds_per_token = 0.01
    waiting.put([Request("a", [500], host="x"), Request("a", [500], host="y")], 0.0)
    assert waiting.sequences == 2
    for _ in range(2):
        assert type(refused(waiting, Request("a"), seconds_per_token=0.01)) is QueueFull
    with pytest.raises(TooLarge):
        queue(max_sequences=10).put([Request("a", [1] * 6, host="x"), Request("a", [1] * 6, host="y")], 0.0)


def test_requests_of_one_principal_for_two_bases_fill_their_batches():
    waiting = queue()
    put(waiting, *(Request("one", host="xy"[number % 2]) for number in range(100)))
    assert [len(batch) for batch in drain(waiting)] == [50, 50]


def test_who_has_just_come_waits_for_few_batches_of_another_base():
    waiting = queue()
    put(waiting, *(Request(f"flood {number}", [24] * 1000, host="x") for number in range(12)))
    for _ in range(3):
        take(waiting, 512)
    [short] = put(waiting, Request("other", [24], host="y"))
    assert (short, 0) in [one for _ in range(3) for one in take(waiting, 512)]


@given(st.lists(st.lists(st.tuples(requests, st.sampled_from("xy")), max_size=4), min_size=30, max_size=40))
def test_nobody_starves_whatever_keeps_coming_for_whichever_base(arrivals):
    waiting, served = queue(), defaultdict(int)
    put(waiting, late := Request("e", [700], host="x"))
    for coming in [*arrivals, *[[]] * 10_000]:
        for request, host in coming:
            request.host = host
            put(waiting, request)
        put(waiting, Request("e", [200], host="y"))
        batch = take(waiting)
        for request, index in batch:
            served[request.principal] += request.lengths[index]
        if (late, 0) in batch:
            break
    # Of its own principal a batch of the other base may go first, and of the others as much.
    assert max(served.values()) <= 700 + BATCH + 3 * (QUANTUM + 700) + BATCH


def refused(waiting, request, **arguments):
    with pytest.raises(OneBertError) as caught:
        put(waiting, request, **arguments)
    return caught.value


def test_a_principal_alone_may_wait_for_as_long_as_the_bound_says():
    waiting = queue(max_seconds=2.0)
    put(waiting, *(Request("one") for _ in range(20)), seconds_per_token=0.01)
    error = refused(waiting, Request("one"), seconds_per_token=0.01)
    assert (type(error), error.status, error.retry_after) == (QueueFull, 503, 2)
    take(waiting, 10)
    put(waiting, Request("one"), seconds_per_token=0.01)


def test_the_default_counts_leave_it_to_the_seconds_how_many_of_the_largest_fan_outs_may_wait():
    """A machine that does a million tokens a second does eight fan-outs of 1024 short texts well within the bound."""
    waiting, per_token = FairQueue(QueueLimits(max_seconds=0.8)), 1e-6
    for _ in range(8):
        put(waiting, Request("a", [24] * 1024), seconds_per_token=per_token)
    assert waiting.tokens * per_token < 0.8


@pytest.mark.promise("queue-bound")
def test_a_newcomer_is_let_in_beside_a_principal_that_fills_the_queue():
    waiting = queue(max_sequences=100, max_tokens=1000, max_seconds=1.0)
    put(waiting, *(Request("flood") for _ in range(10)), seconds_per_token=0.01)
    assert type(refused(waiting, Request("flood"), seconds_per_token=0.01)) is QueueFull
    put(waiting, Request("other", [20] * 10), seconds_per_token=0.01)


@pytest.mark.promise("refusals")
def test_who_holds_more_than_others_is_told_so_and_by_429():
    waiting = queue(max_seconds=1.0)
    put(waiting, Request("flood", [100]), Request("other"), seconds_per_token=0.01)
    error = refused(waiting, Request("flood"), seconds_per_token=0.01)
    assert (type(error), error.status) == (OverShare, 429)
    assert error.retry_after == 2, "a second of its own, and the other's tenth"
    put(waiting, Request("other"), seconds_per_token=0.01)


def fill(waiting, principal):
    """Seconds of one principal's work that are let in where a token takes a millisecond."""
    before = waiting.tokens
    try:
        while True:
            put(waiting, Request(principal), seconds_per_token=0.001)
    except (QueueFull, OverShare):
        return (waiting.tokens - before) * 0.001


@pytest.mark.promise("queue-bound")
@pytest.mark.parametrize("tokens", [[23], [24] * 16], ids=["a sentence", "sixteen"])
def test_all_that_waits_is_bounded_however_many_principals_ask(tokens):
    """Each of 16,000 asks once: what waits of all of them is what one may have waiting, and one request more."""
    waiting, let_in = queue(max_seconds=0.8), 0
    for number in range(16_000):
        with suppress(QueueFull):
            put(waiting, Request(f"principal {number}", tokens), seconds_per_token=1 / 15_000)
            let_in += 1
    assert 0.8 <= waiting.tokens / 15_000 <= 0.8 + sum(tokens) / 15_000
    assert waiting.tokens == let_in * sum(tokens)


@pytest.mark.promise("queue-bound")
def test_who_holds_most_is_refused_first_and_who_asks_little_last():
    waiting = queue(max_seconds=1.0)
    for number in range(50):
        put(waiting, Request(f"small {number}"), seconds_per_token=0.001)
    assert fill(waiting, "large") == pytest.approx(0.5), "beside half a second that is other principals'"
    assert type(refused(waiting, Request("large"), seconds_per_token=0.001)) is OverShare
    put(waiting, *(Request(f"small {number}") for number in range(40)), seconds_per_token=0.001)
    assert type(refused(waiting, Request("large"), seconds_per_token=0.001)) is OverShare


@pytest.mark.parametrize("floods", [1, 3])
def test_large_requests_of_many_principals_leave_room_for_a_short_text(floods):
    """Each is more than all that may wait: some are let in all the same, and are served in turns."""
    waiting, let_in = queue(max_seconds=1.0), 0
    for number in range(50):
        with suppress(QueueFull, OverShare):
            put(waiting, *(Request(f"large {number}", [500] * 64) for _ in range(floods)), seconds_per_token=0.001)
        let_in += f"large {number}" in waiting._turns._flows
    assert let_in == 1 / COUNTED
    put(waiting, Request("other"), seconds_per_token=0.001)
    with pytest.raises(QueueFull):
        put(waiting, Request("late", [500]), seconds_per_token=0.001)


def test_beside_a_batch_only_short_ones_of_others_are_taken():
    """The batch under way holds 80 tokens of `served`: what goes beside it is small, whosever turn comes first."""
    waiting = queue()
    put(waiting, Request("served", [80]))
    assert take(waiting) != []
    batch = Beside([(Request("served", [80], host=SimpleNamespace(weight=1.0)), 0)])
    assert (batch.room, batch.served) == (40, {"served"})
    put(waiting, Request("served", [5] * 3), Request("long", [300]), short := Request("short", [8] * 9))
    assert waiting.take_beside(batch, lambda _: (20, 40), 0.0) == [(short, 0), (short, 1)]
    assert waiting.may_run_beside("short", batch)
    assert waiting.take_beside(batch, lambda _: (200, 200), 0.0) == [(short, place) for place in range(2, 8)]
    assert not waiting.may_run_beside("short", batch), "it is ahead by all of the room"
    assert waiting.take_beside(batch, lambda _: (200, 200), 0.0) == []
    waiting.remove(short)
    put(waiting, Request("short", [8]))
    assert waiting.take_beside(batch, lambda _: (200, 200), 0.0) == [], "also when it has left and comes back"
    assert sum(len(batch) for batch in drain(waiting)) == 5


def test_a_text_beside_a_batch_is_computed_once_for_all_its_tasks():
    """Its principal pays for all of them by its turns, as ever."""
    waiting = queue()
    batch = Beside([(Request("served", [400], host=SimpleNamespace(weight=1.0)), 0)])
    shared, alone = Request("light", [20] * 50, costs=[20] + [2] * 49), Request("light", [20] * 50)
    put(waiting, shared)
    assert waiting.take_beside(batch, lambda _: (100, 8192), 0.0) == [(shared, place) for place in range(41)]
    assert waiting.take_beside(batch, lambda _: (100, 8192), 0.0) == []
    other = queue()
    put(other, alone)
    assert other.take_beside(batch, lambda _: (8192, 8192), 0.0) == [(alone, place) for place in range(11)]


@pytest.mark.promise("early-leavers")
@pytest.mark.parametrize(("waited", "longest"), [(0.6, 0.3), (60.0, 1.0), (0.4, 1.0)])
def test_a_principal_whose_clients_leave_queues_for_half_of_what_they_waited(waited, longest):
    """For all of the bound where they left at once or long ago: that was not because of the wait."""
    waiting = queue(max_seconds=1.0)
    waiting.note_left("a", waited, now=0.0)
    assert waiting.expire(REMEMBERED) == []
    assert fill(waiting, "a") == pytest.approx(longest)
    waiting.clear()
    waiting.expire(REMEMBERED + 0.1)
    assert fill(waiting, "a") == pytest.approx(1.0)


@pytest.mark.promise("early-leavers")
def test_who_leaves_takes_no_room_from_other_principals():
    waiting = queue(max_seconds=1.0)
    waiting.note_left("a", 0.5, now=0.0)
    assert fill(waiting, "a") == pytest.approx(0.25)
    assert fill(waiting, "b") == pytest.approx(0.75), "what it would hold beside anybody who has 0.25 s waiting"


def test_of_principals_whose_clients_left_the_latest_are_remembered():
    waiting = queue(max_seconds=1.0)
    for number in range(MAX_REMEMBERED + 1):
        waiting.note_left(f"principal {number}", 0.5, now=0.0)
    assert fill(waiting, "principal 0") == pytest.approx(1.0)
    waiting.clear()
    assert fill(waiting, f"principal {MAX_REMEMBERED}") == pytest.approx(0.25)


@pytest.mark.promise("queue-bound")
@pytest.mark.parametrize("principals", [1, 2, 5])
@pytest.mark.parametrize("limits", [{"max_sequences": 120}, {"max_tokens": 1200}])
def test_there_is_always_room_for_one_more_principal(limits, principals):
    """Of sequences and tokens, which bound memory, a principal may hold no more than is left free."""
    waiting, full = queue(**limits), set()
    while len(full) < principals:
        for principal in set(map(str, range(principals))) - full:
            try:
                put(waiting, Request(principal))
            except (QueueFull, OverShare):
                full.add(principal)
    assert waiting.sequences <= 120 * principals / (principals + 1)
    put(waiting, Request("one more", [10] * (120 // (principals + 1))))


def test_what_cannot_be_answered_in_time_is_refused_before_it_costs_anything():
    waiting = queue()
    put(waiting, Request("a", [100]), seconds_per_token=0.01)
    assert type(refused(waiting, Request("b", [50], deadline=0.9), seconds_per_token=0.01)) is QueueFull
    put(waiting, Request("b", [50], deadline=1.1), seconds_per_token=0.01)
    assert type(refused(waiting, Request("b", deadline=5.0), now=5.0)) is DeadlineExceeded


def test_an_empty_queue_takes_what_is_estimated_to_be_late():
    """Else an estimate that is wrong would never be corrected."""
    put(queue(max_seconds=1.0), Request("a", [500], deadline=1.0), seconds_per_token=0.01)


def test_what_could_never_wait_is_refused_for_good():
    for lengths in ([1] * 11, [101]):
        assert type(refused(queue(max_sequences=10, max_tokens=100), Request("a", lengths))) is TooLarge


def test_the_servers_own_work_is_let_in_beside_the_bound_and_takes_nobodys_room():
    waiting = queue(max_sequences=2, max_tokens=100, max_seconds=1.0)
    put(waiting, Request("a", [50]), seconds_per_token=1.0)
    own = put(waiting, *(Request(RESERVED, [90]) for _ in range(3)), seconds_per_token=1.0)
    put(waiting, Request("b", [50]), seconds_per_token=1.0)
    assert {request for request, _ in take(waiting, 300)} & set(own), "and it takes turns like any principal"


def test_check_refuses_what_put_would_refuse_whatever_its_size():
    waiting = queue(max_seconds=1.0)
    waiting.check("a")
    put(waiting, Request("a", [100]), seconds_per_token=0.01)
    with pytest.raises(QueueFull):
        waiting.check("a")
    waiting.check("b")
    waiting.check(RESERVED)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 100))
def test_what_is_late_is_removed_wherever_it_stands_and_nothing_else(deadlines, now):
    waiting = queue()
    given_requests = put(waiting, *(Request("a", [10, 10], deadline) for deadline in deadlines), now=-1.0)
    take(waiting, 10)
    assert set(waiting.expire(now)) == {request for request in given_requests if request.deadline <= now}
    assert waiting.expire(now) == []
    rest = {request for batch in drain(waiting) for request, _ in batch}
    assert rest == {request for request in given_requests if request.deadline > now}


@pytest.mark.promise("abandoned-requests")
@pytest.mark.parametrize("leave", [lambda waiting, _: take(waiting, 1), FairQueue.remove], ids=["served", "left"])
def test_what_no_longer_waits_is_not_kept_until_its_deadline(leave):
    """Neither the request, which holds its answers, nor more than a bounded number of deadlines."""
    waiting, kept = queue(), WeakSet()
    for _ in range(10_000):
        (request,) = put(waiting, Request("a", [1], deadline=600.0))
        kept.add(request)
        leave(waiting, request)
        del request
        assert not kept
    assert max(len(waiting._deadlines._heap), len(waiting._turns._orders[None]._heap)) <= MAX_STALE + 2


def test_clearing_gives_everything_back():
    waiting = queue()
    given_requests = put(waiting, *(Request(principal, [5, 5]) for principal in "aba"))
    take(waiting, 5)
    assert set(waiting.clear()) == set(given_requests)
    assert (waiting.sequences, waiting.tokens, take(waiting, 10)) == (0, 0, [])
