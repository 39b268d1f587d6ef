"""The queue: fair turns, nobody starves, what waits is bounded in time and by shares."""

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_server.access.principal import RESERVED
from onebert_server.engine.block import REQUEST
from onebert_server.engine.queue.backlog import COUNTED, MAX_REMEMBERED, MAX_SLACK, REMEMBERED, SLACK, QueueLimits
from onebert_server.engine.queue.beside import Beside
from onebert_server.engine.queue.fair_queue import QUANTUM, FairQueue
from onebert_server.engine.queue.waiting import REQUEST_TURN, WAITING, Texts
from onebert_store.errors import DeadlineExceeded, OneBertError, OverShare, QueueFull, TooLarge

BATCH = 1024
PER_TOKEN = 0.001
INFINITY = float("inf")
HOSTS = "xyz"
numbers = count()


@dataclass(eq=False)
class Request:
    principal: str
    lengths: list[int] = field(default_factory=lambda: [10])
    deadline: float = float("inf")
    costs: list[int] = None
    host: str = "x"
    work: list[int] = None

    def __post_init__(self):
        self.costs = self.costs or self.lengths
        self.work = self.work or self.lengths
        self.number = next(numbers)


class Queue(FairQueue):
    """The queue with requests as objects."""

    def __init__(self, limits, hosts="x"):
        super().__init__(limits, len(hosts))
        self.hosts, self.known = hosts, {}

    def put_all(self, given_requests, now, one_question=False):
        """The errors by request of all that a turn of an edge submits."""
        names = list(dict.fromkeys(request.principal for request in given_requests))
        requests = np.zeros(len(given_requests), REQUEST)
        requests["principal"] = [names.index(request.principal) for request in given_requests]
        requests["sequences"] = [len(request.lengths) for request in given_requests]
        requests["deadline"] = [request.deadline for request in given_requests]
        requests["host"] = [self.hosts.index(request.host) for request in given_requests]
        requests["requests"] = [place == 0 or not one_question for place in range(len(requests))]
        rows = np.concatenate([self.rows(request) for request in given_requests])
        errors = super().put(requests, Texts(rows, self.ids(rows)), names, now)
        return {given_requests[place]: error for place, error in errors.items()}

    def put(self, given_requests, now):
        """Of one question."""
        for error in self.put_all(given_requests, now, one_question=True).values():
            raise error

    def rows(self, request):
        self.known[request.number] = request
        rows = np.zeros(len(request.lengths), WAITING)
        rows["request"], rows["host"], rows["position"] = (
            request.number,
            self.hosts.index(request.host),
            range(len(rows)),
        )
        rows["tokens"], rows["cost"], rows["work"] = request.lengths, request.costs, request.work
        return rows

    def take(self, bounds, now):
        return self.taken(super().take(lambda host: bounds(self.hosts[host]), now))

    def take_beside(self, batch, bounds, now):
        return self.taken(super().take_beside(batch, lambda host: bounds(self.hosts[host]), now))

    def ids(self, rows):
        """Those of each sequence are its request and its position."""
        return (rows["request"] * 1000 + rows["position"]).repeat(rows["tokens"])

    def taken(self, texts):
        rows = texts.rows
        assert (texts.ids == self.ids(rows)).all()
        requests = [self.known[number] for number in rows["request"].tolist()]
        assert [self.names[number] for number in rows["principal"].tolist()] == [one.principal for one in requests]
        return list(zip(requests, rows["position"].tolist(), strict=True))

    def fills(self, bounds):
        return super().fills(lambda host: bounds(self.hosts[host]))

    def remove(self, request):
        return len(super().remove(np.array([request.number])))

    def expire(self, now):
        return [self.known[number] for number in np.unique(super().expire(now)["request"]).tolist()]

    def clear(self):
        return [self.known[number] for number in dict.fromkeys(super().clear()["request"].tolist())]


def queue(max_sequences=10**6, max_tokens=10**9, max_seconds=float("inf"), hosts="x"):
    return Queue(QueueLimits(max_sequences, max_tokens, max_seconds), hosts)


def put(to, *requests, now=0.0, seconds_per_token=0.0):
    to.backlog.seconds_per_token = seconds_per_token
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


requests = st.builds(
    Request, st.sampled_from("abcd"), st.lists(st.integers(1, 700), min_size=1, max_size=12) | st.just([400] * 20)
)


@st.composite
def any_requests(draw, several=True):
    """Requests of several hosts, with texts that tasks share, or of more than a turn; most have time."""
    lengths = draw(
        st.lists(st.integers(1, 700), min_size=1, max_size=12) | st.lists(st.just(24), min_size=1, max_size=8)
    )
    costs, host = list(lengths), draw(st.sampled_from(HOSTS)) if several else "x"
    if draw(st.booleans()):
        lengths = [lengths[0]] * draw(st.integers(1, 40))
        costs = lengths[:1] + [max(lengths[0] // draw(st.sampled_from([1, 6])), 1) for _ in lengths[1:]]
    work = lengths if host == "x" else [ceil(length / 3) for length in lengths]
    patience = draw(st.sampled_from([INFINITY, INFINITY, 0.0, 0.05, 0.5, 3.0]))
    principal = draw(st.sampled_from(["a", "b", "c", "d", RESERVED]))
    return Request(principal, lengths, patience, costs, host, work)


@dataclass
class Room:
    """The room beside a batch."""

    room: int
    served: list[str]


def any_steps(several):
    sizes = st.sampled_from([1, 50, 300, 1000, 3000, 10**6])
    return st.lists(
        st.tuples(st.just("put"), st.lists(any_requests(several), min_size=1, max_size=6))
        | st.tuples(st.just("take"), sizes)
        | st.tuples(st.just("beside"), st.tuples(sizes, st.sampled_from("abcd"), sizes))
        | st.tuples(st.just("remove"), st.integers(0, 50))
        | st.tuples(st.just("left"), st.tuples(st.sampled_from("abcd"), st.sampled_from([0.2, 0.6, 1.0, 3.0])))
        | st.tuples(st.just("wait"), st.sampled_from([0.01, 0.1, 1.0, 10.0])),
        max_size=40,
    )


@pytest.mark.parametrize("hosts", ["x", HOSTS], ids=["one host", "several"])
@given(st.data())
def test_each_sequence_is_taken_once_within_the_bounds_of_its_batch(hosts, data):
    limits = data.draw(st.sampled_from([{}, {"max_seconds": 1.0}, {"max_sequences": 40, "max_tokens": 9000}]))
    waiting, known, now = queue(**limits, hosts=hosts), [], 0.0
    waiting.backlog.seconds_per_token, inside = PER_TOKEN, set()
    for what, value in [*data.draw(any_steps(hosts == HOSTS)), ("take", 10**6)]:
        batch, most = [], value
        if what == "put":
            for request in value:
                request.deadline += now
            refused = waiting.put_all(value, now)
            known += [request for request in value if request not in refused]
            inside |= {(one, place) for one in known if one in value for place in range(len(one.lengths))}
        elif what == "take":
            batch = waiting.take(lambda _, most=most: (most, 2 * most), now)
        elif what == "beside":
            room, served, most = value
            batch = waiting.take_beside(Room(room, [served]), lambda _, most=most: (most, 2 * most), now)
            assert served not in {request.principal for request, _ in batch}
        elif what == "left":
            waiting.note_left(*value, now)
        elif what == "remove" and known:
            gone = known[value % len(known)]
            waiting.remove(gone)
            inside = {(request, place) for request, place in inside if request is not gone}
        elif what == "wait":
            now += value
            assert set(waiting.expire(now)) == {request for request, _ in inside if request.deadline <= now}
            inside = {(request, place) for request, place in inside if request.deadline > now}
        assert len(set(batch)) == len(batch)
        assert inside.issuperset(batch)
        assert len(bases_of(batch)) <= 1
        if len(batch) > 1:
            assert sum(request.costs[place] for request, place in batch) <= most
            assert sum(request.lengths[place] for request, place in batch) <= 2 * most
        inside -= set(batch)
        assert (waiting.sequences, waiting.tokens) == (len(inside), sum(one.lengths[place] for one, place in inside))


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


def test_a_short_text_of_the_same_principal_waits_for_a_turn_and_not_for_a_fan_out():
    waiting = queue()
    put(waiting, Request("same", [512] * 160), short := Request("same"))
    before = 0
    while (short, 0) not in (batch := take(waiting)):
        before += sum(request.lengths[index] for request, index in batch)
    assert before <= REQUEST_TURN


def order(waiting):
    """One sequence at a time: a batch of all that waits has no order."""
    return [request for batch in drain(waiting, 1) for request, _ in batch]


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
    waiting = queue(hosts=HOSTS)
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
    waiting, served = queue(hosts=["slow", "fast"]), defaultdict(int)
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
    waiting = queue(hosts=HOSTS)
    put(waiting, Request("first", [QUANTUM] * 50, host="x"))
    [late] = put(waiting, Request("second", [QUANTUM], host="y"))
    put(waiting, Request("second", [QUANTUM] * 50, host="x"))
    batches = [take(waiting, 2 * QUANTUM) for _ in range(3)]
    assert (late, 0) in [one for batch in batches for one in batch]


def test_an_empty_queue_takes_a_large_request_for_two_bases_whole():
    """As it takes one of the same work for one base; half of it would be no answer."""
    waiting = queue(max_seconds=1.0, hosts=HOSTS)
    waiting.backlog.seconds_per_token = 0.01
    waiting.put([Request("a", [500], host="x"), Request("a", [500], host="y")], 0.0)
    assert waiting.sequences == 2
    for _ in range(2):
        assert type(refused(waiting, Request("a"), seconds_per_token=0.01)) is QueueFull
    with pytest.raises(TooLarge):
        queue(max_sequences=10, hosts=HOSTS).put(
            [Request("a", [1] * 6, host="x"), Request("a", [1] * 6, host="y")], 0.0
        )


def test_requests_of_one_principal_for_two_bases_fill_their_batches():
    waiting = queue(hosts=HOSTS)
    put(waiting, *(Request("one", host="xy"[number % 2]) for number in range(100)))
    assert [len(batch) for batch in drain(waiting)] == [50, 50]


def test_who_has_just_come_waits_for_few_batches_of_another_base():
    waiting = queue(hosts=HOSTS)
    put(waiting, *(Request(f"flood {number}", [24] * 1000, host="x") for number in range(12)))
    for _ in range(3):
        take(waiting, 512)
    [short] = put(waiting, Request("other", [24], host="y"))
    assert (short, 0) in [one for _ in range(3) for one in take(waiting, 512)]


@given(st.lists(st.lists(st.tuples(requests, st.sampled_from("xy")), max_size=4), min_size=30, max_size=40))
def test_nobody_starves_whatever_keeps_coming_for_whichever_base(arrivals):
    waiting, served = queue(hosts=HOSTS), defaultdict(int)
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
    waiting, per_token = queue(2**14, 2**20, 0.8), 1e-6
    for _ in range(8):
        put(waiting, Request("a", [24] * 1024), seconds_per_token=per_token)
    assert waiting.tokens * per_token < 0.8


def test_a_newcomer_is_let_in_beside_a_principal_that_fills_the_queue():
    waiting = queue(max_sequences=100, max_tokens=1000, max_seconds=1.0)
    put(waiting, *(Request("flood") for _ in range(10)), seconds_per_token=0.01)
    assert type(refused(waiting, Request("flood"), seconds_per_token=0.01)) is QueueFull
    put(waiting, Request("other", [20] * 10), seconds_per_token=0.01)


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
        let_in += waiting.may_run_beside([f"large {number}"], Room(10**9, []))
    assert let_in == 1 / COUNTED
    put(waiting, Request("other"), seconds_per_token=0.001)
    with pytest.raises(QueueFull):
        put(waiting, Request("late", [500]), seconds_per_token=0.001)


def beside(principal, tokens):
    """What is beside a batch of one text."""
    other = queue()
    put(other, Request(principal, [tokens]))
    return Beside(FairQueue.take(other, lambda _: (tokens, tokens), 0.0).rows, 1.0, other.names)


def test_beside_a_batch_only_short_ones_of_others_are_taken():
    """The batch under way holds 80 tokens of `served`: what goes beside it is small, whosever turn comes first."""
    waiting = queue()
    put(waiting, Request("served", [80]))
    assert take(waiting) != []
    batch = beside("served", 80)
    assert (batch.room, batch.served) == (40, {"served"})
    put(waiting, Request("served", [5] * 3), Request("long", [300]), short := Request("short", [8] * 9))
    assert waiting.take_beside(batch, lambda _: (20, 40), 0.0) == [(short, 0), (short, 1)]
    assert waiting.may_run_beside(["short"], batch)
    assert waiting.take_beside(batch, lambda _: (200, 200), 0.0) == [(short, place) for place in range(2, 8)]
    assert not waiting.may_run_beside(["short"], batch), "it is ahead by all of the room"
    assert waiting.take_beside(batch, lambda _: (200, 200), 0.0) == []
    waiting.remove(short)
    put(waiting, Request("short", [8]))
    assert waiting.take_beside(batch, lambda _: (200, 200), 0.0) == [], "also when it has left and comes back"
    assert sum(len(batch) for batch in drain(waiting)) == 5


def test_a_text_beside_a_batch_is_computed_once_for_all_its_tasks():
    """Its principal pays for all of them by its turns, as ever."""
    waiting = queue()
    batch = beside("served", 400)
    shared, alone = Request("light", [20] * 50, costs=[20] + [2] * 49), Request("light", [20] * 50)
    put(waiting, shared)
    assert waiting.take_beside(batch, lambda _: (100, 8192), 0.0) == [(shared, place) for place in range(41)]
    assert waiting.take_beside(batch, lambda _: (100, 8192), 0.0) == []
    other = queue()
    put(other, alone)
    assert other.take_beside(batch, lambda _: (8192, 8192), 0.0) == [(alone, place) for place in range(11)]


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


@pytest.mark.parametrize("leave", [lambda waiting, _: take(waiting, 1), Queue.remove], ids=["served", "left"])
def test_what_no_longer_waits_is_not_kept_until_its_deadline(leave):
    """Neither the request nor its principal: the tables stay small."""
    waiting = queue()
    put(waiting, Request("always"))
    for number in range(400):
        (request,) = put(waiting, Request(f"principal {number}", [1], deadline=600.0))
        leave(waiting, request)
    tables = waiting._waiting.rows, waiting._waiting._turns, waiting._flows.table, waiting._flows.names
    assert max(map(len, tables)) <= 256
    assert waiting.expire(600.0) == [] or waiting.sequences <= 1


def test_who_was_served_ahead_is_forgotten_once_others_are_as_far():
    """Until then each keeps its turn, so that it gains nothing by leaving."""
    waiting, room = queue(), Room(3 * QUANTUM, ["other"])
    put(waiting, Request("other", [QUANTUM] * 10_000))
    for number in range(400):
        put(waiting, early := Request(f"principal {number}", [QUANTUM] * 9))
        assert len(waiting.take_beside(room, lambda _: (BATCH, BATCH), 0.0)) == 4, (
            "its own turn, and three rounds ahead"
        )
        waiting.remove(early)
        put(waiting, early := Request(f"principal {number}", [QUANTUM]))
        assert waiting.take_beside(room, lambda _: (BATCH, BATCH), 0.0) == []
        waiting.remove(early)
        assert [request.principal for request, _ in take(waiting, 4 * QUANTUM)] == ["other"] * 4
    assert len(waiting._flows.names) <= 128


def test_clearing_gives_everything_back():
    waiting = queue()
    given_requests = put(waiting, *(Request(principal, [5, 5]) for principal in "aba"))
    take(waiting, 5)
    assert set(waiting.clear()) == set(given_requests)
    assert (waiting.sequences, waiting.tokens, take(waiting, 10)) == (0, 0, [])
