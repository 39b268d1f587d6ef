"""The queue: whoever was served least is next, nobody starves, what waits is bounded in time and by shares."""

from collections import defaultdict
from contextlib import suppress
from itertools import count
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_server.access.principal import OWN_WORK, RESERVED, root
from onebert_server.engine.block import REQUEST, SEQUENCE, Block
from onebert_server.engine.line import LEAST_PART
from onebert_server.engine.queue import MAX_SHADOW_TOKENS, Queue, QueueLimits
from onebert_server.engine.request import QUANTUM, requests_of
from onebert_store.errors import DeadlineExceeded, OneBertError, OverShare, QueueFull, TooLarge

BATCH = 1024
numbers = count()


def asked(principal, lengths=(10,), deadline=inf, costs=None, host=0, idle=False):
    """A request; `costs` are its computed tokens, if its sequences share a text."""
    requests, sequences = np.zeros(1, REQUEST), np.zeros(len(lengths), SEQUENCE)
    requests["number"], requests["sequences"], requests["host"] = next(numbers), len(lengths), host
    requests["deadline"], requests["waits"] = deadline, idle
    sequences["tokens"], sequences["text"] = lengths, range(len(lengths))
    who = OWN_WORK if principal == RESERVED else root(principal)
    [request] = requests_of(None, Block([who], requests, sequences, np.zeros(sum(lengths), np.int32)), [], 0)
    request.costs = [0, *np.cumsum(costs or lengths).tolist()]
    return request


def queue(max_sequences=10**6, max_tokens=10**9, max_seconds=inf, hosts=1, seconds_per_token=0.0):
    made = Queue(QueueLimits(max_sequences, max_tokens, max_seconds), hosts)
    for line in made.lines:
        line.seconds_per_token = seconds_per_token
    return made


def put(to, *requests, now=0.0):
    """Each as a question of its own."""
    for request in requests:
        if (error := to.put([request], now)) is not None:
            raise error
    return requests


def taken(room):
    """Each sequence of a batch, as (request, place)."""
    parts = room.parts.values() if room else ()
    return [(request, place) for request, first, stop in parts for place in range(first, stop)]


def take(waiting, most=BATCH, now=0.0, tokens=None):
    bound(waiting, most, tokens or most)
    return taken(waiting.take(now))


def bound(waiting, most, tokens):
    for line in waiting.lines:
        line.batch_tokens, line.most_tokens = most, tokens


def cost(request, place):
    return request.costs[place + 1] - request.costs[place]


class Naive:
    """The rule by lists that are walked: a text's tokens, a request of texts, or who shares what is served."""

    def __init__(self, name, parts=inf):
        self.name, self.parts, self.clock, self.entries, self.before = name, parts, 0.0, [], {}

    @property
    def waits(self):
        return any(child.waits if isinstance(child, Naive) else child for _, child in self.entries)

    def join(self, child, served=0.0):
        self.entries.append([max(served, self.clock - 64), child])

    def ask(self, name, number, lengths):
        known = [child for _, child in self.entries if child.name == name]
        if not known:
            known = [Naive(name, parts=16)]
            self.join(known[0], self.before.pop(name, 0.0))
        known[0].join([(number, length) for length in lengths])

    def serve(self, batch, most):
        entry = min(self.entries, key=lambda entry: entry[0])
        piece = self.piece(entry[1], batch, most) if isinstance(entry[1], list) else entry[1].serve(batch, most)
        if piece:
            self.clock = max(entry[0], self.clock + piece / min(len(self.entries) + 1, self.parts))
            self.entries.remove(entry)
            if entry[1] if isinstance(entry[1], list) else entry[1].waits:
                self.entries.append([entry[0] + piece, entry[1]])
            elif isinstance(entry[1], Naive):
                self.before[entry[1].name] = entry[0] + piece
        if not self.entries:
            self.before = {}
        return piece

    def piece(self, texts, batch, most):
        room, piece = most - sum(length for _, length in batch), 0
        while texts and (piece + texts[0][1] <= min(64, room) or not piece):
            if not piece and batch and texts[0][1] > room:
                break
            piece += texts[0][1]
            batch.append(texts.pop(0))
        return piece


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.lists(st.integers(1, 200), min_size=1, max_size=9))
        | st.sampled_from([1, 50, 300, 1000]),
        max_size=60,
    )
)
def test_batches_are_those_of_lists_that_are_walked(steps):
    waiting, naive = queue(), Naive("all")
    for step in [*steps, *[10**6] * 3]:
        if isinstance(step, tuple):
            [request] = put(waiting, asked(*step))
            naive.ask(step[0], request.number, step[1])
            continue
        batch, room = [], step
        while naive.waits and sum(length for _, length in batch) < room and naive.serve(batch, room):
            pass
        parts = [(request.number, cost(request, place)) for request, place in take(waiting, room)]
        assert sorted(parts) == sorted(batch)
    assert waiting.sequences == 0


requests = st.builds(
    asked,
    st.sampled_from("abcd"),
    st.lists(st.integers(1, 700), min_size=1, max_size=12) | st.just([400] * 20),
)


@st.composite
def any_requests(draw):
    """Requests of several hosts, or with texts that tasks share; most have time."""
    lengths, costs = draw(st.lists(st.integers(1, 700), min_size=1, max_size=12)), None
    if draw(st.booleans()):
        lengths = [lengths[0]] * draw(st.integers(1, 40))
        costs = lengths[:1] + [max(lengths[0] // draw(st.sampled_from([1, 6])), 1) for _ in lengths[1:]]
    time = draw(st.sampled_from([inf, inf, 0.0, 0.05, 0.5, 3.0]))
    principal = draw(st.sampled_from(["a", "b", "c", "d", RESERVED]))
    return asked(principal, lengths, time, costs, draw(st.integers(0, 2)))


sizes = st.sampled_from([1, 50, 300, 1000, 3000, 10**6])
any_steps = st.lists(
    st.tuples(st.just("put"), st.lists(any_requests(), min_size=1, max_size=6))
    | st.tuples(st.just("take"), sizes)
    | st.tuples(st.just("drop"), st.integers(0, 50))
    | st.tuples(st.just("wait"), st.sampled_from([0.01, 0.1, 1.0, 10.0])),
    max_size=40,
)


def tokens_of(request, place):
    return request.tokens[place + 1] - request.tokens[place]


class Inside:
    """A queue and what waits in it, by the steps of a test."""

    def __init__(self, limits):
        self.queue = queue(**limits, hosts=3, seconds_per_token=0.001)
        self.known, self.sequences, self.now = [], set(), 0.0

    def put(self, requests):
        for request in requests:
            request.deadline += self.now
            if self.queue.put([request], self.now) is None:
                self.known.append(request)
                self.sequences |= {(request, place) for place in range(len(request.sequences))}

    def take(self, most):
        bound(self.queue, most, 2 * most)
        if room := self.queue.take(self.now):
            self.check(room, most)

    def drop(self, number):
        for gone in self.known[number : number + 1]:
            if gone.waits:
                self.queue.lines[gone.host].drop(gone)
            self.sequences = {(request, place) for request, place in self.sequences if request is not gone}

    def wait(self, seconds):
        self.now += seconds

    def check(self, room, most):
        batch, late = taken(room), {request for request, _ in room.late}
        assert all(request.deadline <= self.now for request in late)
        assert all(request.deadline > self.now for request, _ in batch)
        assert self.sequences.issuperset(batch)
        assert len({request.host for request, _ in batch}) <= 1
        if len(batch) > 1:
            assert sum(cost(*part) for part in batch) <= most
            assert sum(tokens_of(*part) for part in batch) <= 2 * most
        left = self.sequences - set(batch)
        self.sequences = {(request, place) for request, place in left if request not in late}


@given(any_steps, st.sampled_from([{}, {"max_seconds": 1.0}, {"max_sequences": 40, "max_tokens": 9000}]))
def test_each_sequence_is_taken_once_within_bounds(steps, limits):
    inside = Inside(limits)
    for what, value in [*steps, *[("take", 10**6)] * 4]:
        getattr(inside, what)(value)
        tokens = sum(tokens_of(*sequence) for sequence in inside.sequences)
        assert (inside.queue.sequences, inside.queue.tokens) == (len(inside.sequences), tokens)
    assert not inside.sequences


@given(st.lists(st.lists(st.integers(1, 512), min_size=30, max_size=60), min_size=2, max_size=5))
def test_principals_that_wait_are_served_equally(lengths):
    waiting, served = queue(), dict.fromkeys(map(str, range(len(lengths))), 0)
    left = {str(number): len(length) for number, length in enumerate(lengths)}
    put(waiting, *(asked(str(number), length) for number, length in enumerate(lengths)))
    while all(left.values()):
        for request, place in take(waiting, 1):
            served[request.principal] += cost(request, place)
            left[request.principal] -= 1
        assert max(served.values()) - min(served.values()) <= QUANTUM + 512


def test_who_leaves_and_comes_again_gains_nothing():
    waiting, served = queue(), defaultdict(int)
    put(waiting, asked("stays", [24] * 4000))
    for _ in range(1000):
        put(waiting, asked("comes", [24]), asked("comes", [24]))
        for request, place in take(waiting, 72):
            served[request.principal] += cost(request, place)
    assert abs(served["stays"] - served["comes"]) <= 2 * QUANTUM


@given(st.lists(st.lists(requests, max_size=4), min_size=20, max_size=30))
def test_nobody_starves_whatever_keeps_coming(arrivals):
    """Any request is done after its own principal's work and as much of each other principal have been served."""
    waiting, served = queue(), defaultdict(int)
    put(waiting, asked("e", [200]), late := asked("e", [700]))
    for coming in [*arrivals, *[[]] * 10_000]:
        for request in coming:
            put(waiting, asked(request.principal, request.sequences["tokens"].tolist()))
        batch = take(waiting)
        for request, place in batch:
            served[request.principal] += cost(request, place)
        if (late, 0) in batch:
            break
    assert served["e"] == 900
    # As many pieces as its tokens take, and the batch under way.
    assert max(served.values()) <= 900 + 3 * (QUANTUM + 700) + BATCH


@pytest.mark.parametrize("principal", [lambda number: "same", lambda number: f"new {number}"], ids=["one's own", "new"])
def test_short_requests_do_not_starve_a_large_one(principal):
    """A sixteenth beside others of its principal; beside ever new principals as much as these together."""
    waiting, served = queue(), 0
    put(waiting, large := asked("same", [24] * 1000))
    put(waiting, *(asked(principal(number), [24]) for number in range(300)))
    for number in range(300, 1900, 16):
        served += sum(cost(*part) for part in take(waiting, 16 * 24) if part[0] is large)
        put(waiting, *(asked(principal(number + each), [24]) for each in range(16)))
    if principal(0) == "same":
        # Those that were there when it came are as old as it is.
        assert served >= (100 * 16 - 300) * 24 / (LEAST_PART + 1) - QUANTUM
    assert served > 0


def test_bases_give_batches_in_turns():
    waiting = queue(hosts=2)
    put(waiting, *(asked(f"flood {number}", [24] * 1000, host=0) for number in range(12)))
    for now in range(3):
        take(waiting, 512, now)
    [short] = put(waiting, asked("other", [24], host=1), now=3.0)
    assert (short, 0) in [part for now in (4, 5) for part in take(waiting, 512, now)]
    put(waiting, *(asked("flood 1", [24] * 1000, host=1) for _ in range(2)), now=6.0)
    hosts = [{request.host for request, _ in take(waiting, 512, now)} for now in range(7, 13)]
    assert sorted(map(list, hosts)) == [[0]] * 3 + [[1]] * 3


def test_a_question_to_two_bases_waits_whole_or_not_at_all():
    """An empty queue takes one that is large, as it takes one of the same work for one base."""
    waiting = queue(max_seconds=1.0, hosts=2, seconds_per_token=0.01)
    assert waiting.put([asked("a", [500], host=0), asked("a", [500], host=1)], 0.0) is None
    assert waiting.sequences == 2
    assert type(waiting.put([asked("a", host=0), asked("a", host=1)], 0.0)) is QueueFull
    assert waiting.sequences == 2
    small = queue(max_sequences=10, hosts=2)
    assert type(small.put([asked("a", [1] * 6, host=host) for host in (0, 1)], 0.0)) is TooLarge


def refused(waiting, request, now=0.0):
    with pytest.raises(OneBertError) as caught:
        put(waiting, request, now=now)
    return caught.value


def test_a_principal_alone_may_wait_for_as_long_as_the_bound_says():
    waiting = queue(max_seconds=2.0, seconds_per_token=0.01)
    put(waiting, *(asked("one") for _ in range(20)))
    error = refused(waiting, asked("one"))
    assert (type(error), error.status, error.retry_after) == (QueueFull, 503, 2)
    take(waiting, 10)
    put(waiting, asked("one"))


def test_who_holds_more_than_others_is_told_so_and_by_429():
    waiting = queue(max_seconds=1.0, seconds_per_token=0.01)
    put(waiting, asked("flood", [100]), asked("other"))
    error = refused(waiting, asked("flood"))
    assert (type(error), error.status) == (OverShare, 429)
    assert error.retry_after == 2, "a second of its own, and the other's tenth"
    put(waiting, asked("other"))


def fill(waiting, principal):
    """Seconds of one principal's work that are let in."""
    before = waiting.seconds
    with suppress(QueueFull, OverShare):
        while True:
            put(waiting, asked(principal))
    return waiting.seconds - before


@pytest.mark.parametrize("tokens", [[23], [24] * 16], ids=["a sentence", "sixteen"])
def test_all_that_waits_is_bounded_however_many_principals_ask(tokens):
    """Each of 2,000 asks once: what waits of all of them is what one may have waiting, and one request more."""
    waiting, let_in = queue(max_seconds=0.8, seconds_per_token=1 / 1_500), 0
    for number in range(2_000):
        with suppress(QueueFull):
            put(waiting, asked(f"principal {number}", tokens))
            let_in += 1
    assert 0.8 <= waiting.tokens / 1_500 <= 0.8 + sum(tokens) / 1_500
    assert waiting.tokens == let_in * sum(tokens)


def test_who_holds_most_is_refused_first_and_who_asks_little_last():
    waiting = queue(max_seconds=1.0, seconds_per_token=0.001)
    put(waiting, *(asked(f"small {number}") for number in range(50)))
    assert fill(waiting, "large") == pytest.approx(0.5), "beside half a second that is other principals'"
    assert type(refused(waiting, asked("large"))) is OverShare
    put(waiting, *(asked(f"new {number}") for number in range(40)))
    assert type(refused(waiting, asked("large"))) is OverShare


@pytest.mark.parametrize("principals", [1, 2, 5])
@pytest.mark.parametrize("limits", [{"max_sequences": 120}, {"max_tokens": 1200}])
def test_there_is_always_room_for_one_more_principal(limits, principals):
    """Of sequences and tokens, which bound memory, a principal may hold no more than is left free."""
    waiting, full = queue(**limits), set()
    while len(full) < principals:
        for principal in set(map(str, range(principals))) - full:
            try:
                put(waiting, asked(principal))
            except (QueueFull, OverShare):
                full.add(principal)
    assert waiting.sequences <= 120 * principals / (principals + 1)
    put(waiting, asked("one more", [10] * (120 // (principals + 1))))


def test_what_would_be_late_is_refused():
    waiting = queue(seconds_per_token=0.01)
    put(waiting, asked("a", [100]))
    assert type(refused(waiting, asked("b", [50], deadline=0.9))) is QueueFull
    put(waiting, asked("b", [50], deadline=1.1))
    assert type(refused(waiting, asked("b", deadline=5.0), now=5.0)) is DeadlineExceeded


def test_an_empty_queue_takes_what_is_estimated_to_be_late():
    """Else an estimate that is wrong would never be corrected."""
    put(queue(max_seconds=1.0, seconds_per_token=0.01), asked("a", [500], deadline=1.0))


def test_what_could_never_wait_is_refused_for_good():
    for lengths in ([1] * 11, [101]):
        assert type(refused(queue(max_sequences=10, max_tokens=100), asked("a", lengths))) is TooLarge


def test_the_servers_own_work_takes_nobodys_room():
    waiting = queue(max_sequences=2, max_tokens=100, max_seconds=1.0, seconds_per_token=1.0)
    put(waiting, asked("a", [50]))
    of_server = put(waiting, *(asked(RESERVED, [90]) for _ in range(3)))
    put(waiting, asked("b", [50]))
    assert {request for request, _ in take(waiting, 300)} & set(of_server), "and it is served like any principal"


def test_shadows_wait_beside_the_queue_within_their_bound():
    waiting = queue(max_sequences=5, max_tokens=100, max_seconds=0.1, seconds_per_token=1e-4)
    put(waiting, asked("a", [MAX_SHADOW_TOKENS // 64] * 63, idle=True))
    assert type(refused(waiting, asked("b", [MAX_SHADOW_TOKENS // 32], idle=True))) is QueueFull
    assert (waiting.sequences, waiting.seconds, waiting.shadows.sequences) == (0, 0.0, 63)
    put(waiting, asked("a"))
    bound(waiting, BATCH, BATCH)
    assert len(taken(waiting.take_shadows(0.0))) == 1, "a batch of 6 ms, at least one text"


@pytest.mark.parametrize(
    "leave", [lambda waiting, _: take(waiting, 1), lambda waiting, request: waiting.lines[0].drop(request)]
)
def test_what_no_longer_waits_is_not_kept_until_its_deadline(leave):
    """Neither the request nor its principal."""
    waiting = queue()
    put(waiting, asked("always", [1] * 1000))
    for number in range(400):
        (request,) = put(waiting, asked(f"principal {number % 200}", [1], deadline=600.0))
        leave(waiting, request)
        put(waiting, endless := asked("always", deadline=600.0))
        waiting.lines[0].drop(endless)
    [line] = waiting.lines
    assert max(len(line._heap), len(line.flows["always"]._heap)) <= 64
