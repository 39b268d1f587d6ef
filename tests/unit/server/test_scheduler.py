"""Each request gets its own logits alone, whoever leaves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bases import loaded
from onebert_encoder.maths.batch import BASE_ROW
from onebert_server.access.principal import root
from onebert_server.engine import scheduler as scheduler_module
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.block import REQUEST, SEQUENCE, Block
from onebert_server.engine.host import Host
from onebert_server.engine.queue import QueueLimits
from onebert_server.engine.scheduler import Scheduler
from onebert_server.telemetry.metrics import Metrics

HOST = Host(loaded(), Bank(loaded()))


class Clock:
    """What the scheduler takes for the time."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(scheduler_module.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(Clock, "now", 0.0)
    return Clock


def refused(ended):
    raise AssertionError(ended.errors)


def scheduler(limits, seconds_per_token=0.0, batch_tokens=10**6):
    """One that has begun to serve, and a lane of it."""
    opened = Scheduler([HOST], limits, Metrics())
    [line] = opened.queue.lines
    line.seconds_per_token, line.batch_tokens, line.most_tokens = seconds_per_token, batch_tokens, batch_tokens
    opened.open()
    return opened, opened.lane(refused)


def block(tokens, deadline, principal="someone", number=0, count=1):
    """A request for so many texts."""
    requests, sequences = np.zeros(1, REQUEST), np.zeros(count, SEQUENCE)
    requests["number"], requests["sequences"], requests["deadline"] = number, count, deadline
    sequences["tokens"], sequences["generation"] = tokens, HOST.bank.generation[BASE_ROW]
    sequences["text"] = np.arange(count)
    return Block([root(principal)], requests, sequences, np.full(tokens * count, 5, np.int32))


def logits(number, position):
    """As many as the position says, which nobody else has."""
    return [number * 100.0 + position] * (1 + position)


class Edge:
    """Keeps the logits of each request that is answered, as an edge reads them: one request after the other."""

    def __init__(self, opened):
        self.answered = {}
        self.lane = opened.lane(self.note)

    def note(self, ended):
        parts = np.split(ended.logits, np.cumsum(ended.outputs)[:-1]) if len(ended.outputs) else []
        assert ended.requests["sequences"].sum() == len(parts)
        for number, _, sequences, *_ in ended.requests.tolist():
            self.answered[number], parts = [part.tolist() for part in parts[:sequences]], parts[sequences:]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from("ab"), st.integers(1, 7)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_each_request_gets_its_own_logits(came, random):
    """Also where a batch ends behind a later one."""
    opened, _ = scheduler(QueueLimits(10**6, 10**9), batch_tokens=100)
    uses = HOST.bank.uses.copy()
    edges, left, batches = [Edge(opened), Edge(opened)], set(), []
    for number, (lane, principal, count) in enumerate(came):
        opened.submit(edges[lane].lane, block(30, 60.0 + 1e9, principal, number, count))
    while opened.queue.sequences or batches:
        if opened.queue.sequences and random.random() < 0.6:
            batches.append(opened.take(only_full=False))
            number = random.randrange(len(came))
            if random.random() < 0.3 and number not in edges[came[number][0]].answered:
                left.add(number)
                edges[came[number][0]].lane.withdraw([number])
        elif batches:
            taken = batches.pop(random.randrange(len(batches)))
            parts = [logits(part.number, place) for part, first, stop in taken.parts for place in range(first, stop)]
            opened.settle(taken, np.concatenate(parts).astype(np.float32), np.array([*map(len, parts)]))
    for which, edge in enumerate(edges):
        expected = {
            number: [logits(number, position) for position in range(count)]
            for number, (lane, _, count) in enumerate(came)
            if lane == which and number not in left
        }
        assert edge.answered == expected
    assert (HOST.bank.uses == uses).all()


def test_a_refused_request_ends_at_once_and_those_beside_it_wait():
    opened, lane = scheduler(QueueLimits(max_sequences=8, max_tokens=10**9))
    each = [block(3, 1e12, number=number, count=count) for number, count in ((1, 2), (2, 9), (3, 1))]
    requests, sequences, ids = (np.concatenate([part[field] for part in each]) for field in (1, 2, 3))
    sequences["text"] = np.arange(len(sequences))
    edge = []
    lane.answered = edge.append
    opened.submit(lane, Block(each[0].principals, requests, sequences, ids))
    [ended] = edge
    assert (ended.requests["number"].tolist(), [error.status for error in ended.errors]) == ([2], [413])
    assert opened.queue.sequences == 3


# A timer of uvloop fires up to a millisecond early. The engine's process counts the deadline of a front end's request
# from when its message comes, which is later by the time on the way.
@pytest.mark.parametrize(
    ("before_deadline", "why"),
    [(-0.001, "deadline"), (0.0009, "deadline"), (0.03, "deadline"), (0.2, "left")],
    ids=["after it", "timer of uvloop", "message under way", "client left"],
)
def test_a_request_given_up_at_its_deadline_counts_as_late(clock, before_deadline, why):
    opened, lane = scheduler(QueueLimits(10**6, 10**9))
    opened.submit(lane, block(8, deadline=1.0, number=5))
    clock.now = 1.0 - before_deadline
    opened.withdraw(lane, [5])
    dropped = {name: f'onebert_dropped_total{{why="{name}"}} 1.0' for name in ("deadline", "left")}
    text = opened._metrics.exposition().decode()
    assert [name for name, line in dropped.items() if line in text] == [why]
