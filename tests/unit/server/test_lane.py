"""Lanes: what an edge submits comes back to it once, and to nobody else."""

import time
from collections.abc import Iterator, Sequence
from threading import Condition
from typing import Any

import numpy as np
import pytest
import torch

from bases import far_row, loaded
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.predict import compute_logits, tokens_of_ids
from onebert_encoder.maths.sequences import Sequences
from onebert_server.access.principal import root
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.block import REQUEST, SEQUENCE, Block, Ended
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.host import Host
from onebert_server.engine.queue import QueueLimits
from onebert_store.errors import DeadlineExceeded, OneBertError, QueueFull, ShuttingDown
from parts import Batches

# Only ends a test that fails.
WAIT = 600.0
BASE = loaded().with_batch_invariance()


class Edge:
    """Keeps what its lane tells it, by number."""

    def __init__(self, engine: Engine) -> None:
        self.ended: dict[int, OneBertError | list[np.ndarray]] = {}
        self.calls: list[Ended] = []
        self._changed = Condition()
        self.lane = engine.lane(self._note)

    def _note(self, ended: Ended) -> None:
        logits = np.split(ended.logits, np.cumsum(ended.outputs)[:-1]) if len(ended.outputs) else []
        with self._changed:
            self.calls.append(ended)
            for number, error, sequences, *_ in ended.requests.tolist():
                assert number not in self.ended
                self.ended[number] = ended.errors[error] if error >= 0 else logits[:sequences]
                logits = logits[sequences:]
            self._changed.notify_all()
        assert not logits

    def wait(self, *numbers: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended.keys() >= set(numbers), WAIT)
        return [self.ended[number] for number in numbers]


Texts = Sequence[tuple[int, Sequence[int]]]
"""The slot and the ids of each sequence."""


def block(requests: dict[int, Texts], principals: Sequence[str] = ("a",), seconds: float = WAIT, **more: Any) -> Block:
    """Requests of principals in turn; equal ids in a request are one text."""
    described, sequences, ids = np.zeros(len(requests), REQUEST), list[tuple[int, ...]](), list[int]()
    for texts in requests.values():
        first, distinct = len(sequences), list(dict.fromkeys(tuple(own) for _, own in texts))
        for slot, own in texts:
            sequences.append((slot, len(own), 0, first + distinct.index(tuple(own)), slot + 1))
            ids += own
    described["number"], described["sequences"] = list(requests), [len(texts) for texts in requests.values()]
    described["principal"] = np.arange(len(requests)) % len(principals)
    described["submitted"], described["deadline"] = time.monotonic(), time.monotonic() + seconds
    for name, value in more.items():
        described[name] = value
    return Block([*map(root, principals)], described, np.array(sequences, SEQUENCE), np.array(ids, np.int32))


@pytest.fixture(scope="module")
def host() -> Host:
    made = Host(BASE, Bank(BASE))
    for seed, kind in enumerate(("bitfit", "lora", "frozen", "frozen")):
        made.bank.install(far_row(BASE, kind, labels=2 + seed, seed=seed))
    return made


@pytest.fixture
def batches() -> Iterator[Batches]:
    held = Batches()
    yield held
    held.opened.set()


@pytest.fixture(params=[False, True], ids=["one-batch-at-a-time", "overlapping"])
def engine(host: Host, batches: Batches, request: pytest.FixtureRequest) -> Iterator[Engine]:
    limits = EngineLimits(64, QueueLimits(max_sequences=80, max_tokens=1000))
    running = Engine([host], limits, batches, overlaps=request.param)
    running.start()
    yield running
    batches.opened.set()
    running.close(WAIT)


def alone(host: Host, texts: Texts) -> list[np.ndarray]:
    """The bits of each sequence by itself."""
    found = []
    for slot, ids in texts:
        batch = pack(BASE, Sequences.of([tokens_of_ids(ids)]), [slot])
        with torch.inference_mode():
            found.append(compute_logits(BASE, host.bank.rows, batch).split()[0].numpy())
    return found


def check(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def hold(engine: Engine, batches: Batches) -> None:
    """The engine's thread stops behind a batch of somebody else."""
    batches.opened.clear()
    Edge(engine).lane.submit(block({0: [(1, [5])]}))
    assert batches.entered.wait(WAIT)


def test_each_edge_gets_its_own_answers_in_order_whatever_batches_they_are_in(engine: Engine, host: Host) -> None:
    random = np.random.default_rng(0)
    edges, asked = [Edge(engine), Edge(engine)], dict[tuple[int, int], Texts]()
    for turn in range(20):
        for which, edge in enumerate(edges):
            requests = {
                turn * 10 + number: [
                    (int(random.integers(1, 5)), random.integers(5, 90, random.integers(1, 30)).tolist())
                    for _ in range(random.integers(1, 6))
                ]
                for number in range(int(random.integers(1, 3)))
            }
            edge.lane.submit(block(requests, principals=[f"{which}", "shared"]))
            edge.wait(*requests)
            asked |= {(which, number): texts for number, texts in requests.items()}
    for (which, number), texts in asked.items():
        check(edges[which].ended[number], alone(host, texts))  # type: ignore[arg-type]


def test_a_text_for_several_tasks_is_computed_once_where_they_agree(
    engine: Engine, host: Host, batches: Batches
) -> None:
    text = list(range(5, 25))
    edge = Edge(engine)
    edge.lane.submit(block({1: [(3, text), (4, text), (1, [6, 7])]}))
    [found] = edge.wait(1)
    check(found, alone(host, [(3, text), (4, text), (1, [6, 7])]))
    assert batches.sequences == [3]


def test_a_refused_request_ends_at_once_and_those_beside_it_are_answered(
    engine: Engine, host: Host, batches: Batches
) -> None:
    edge, late = Edge(engine), Edge(engine)
    hold(engine, batches)
    edge.lane.submit(block({1: [(1, [5] * 20)], 2: [(1, [5] * 20)] * 90, 3: [(2, [6])]}))
    assert edge.ended.keys() == {2}
    assert edge.ended[2].status == 413  # type: ignore[union-attr]
    late.lane.submit(block({1: [(1, [5])]}, seconds=-1))
    assert isinstance(late.ended[1], DeadlineExceeded)
    batches.opened.set()
    first, third = edge.wait(1, 3)
    check(first + third, alone(host, [(1, [5] * 20), (2, [6])]))


def test_nothing_is_reported_of_withdrawn_requests_and_their_room_is_free_at_once(
    engine: Engine, batches: Batches
) -> None:
    edge, other = Edge(engine), Edge(engine)
    hold(engine, batches)
    for one in (edge, other):
        one.lane.submit(block({number: [(1, [5, 6])] * 3 for number in (1, 2, 3)}))
    edge.lane.withdraw([1, 3, 77])
    assert engine.queue.sequences == 3 + 9
    batches.opened.set()
    edge.wait(2)
    other.wait(1, 2, 3)
    engine.close(WAIT)
    assert edge.ended.keys() == {2}


def test_an_edge_that_is_gone_leaves_nothing_waiting(engine: Engine, batches: Batches) -> None:
    edge, other = Edge(engine), Edge(engine)
    hold(engine, batches)
    edge.lane.submit(block({number: [(1, [5, 6])] * 3 for number in (1, 2, 3)}))
    other.lane.submit(block({1: [(1, [5])]}))
    edge.lane.close()
    assert engine.queue.sequences == 1
    batches.opened.set()
    other.wait(1)
    engine.close(WAIT)
    assert edge.ended == {}


def test_what_waits_for_idle_time_is_answered_last_and_refused_without_room(
    engine: Engine, host: Host, batches: Batches
) -> None:
    edge = Edge(engine)
    hold(engine, batches)
    edge.lane.submit(block({1: [(1, [5, 6])]}, waits=True))
    edge.lane.submit(block({number: [(2, [7] * 20)] for number in (2, 3)}))
    edge.lane.submit(block({4: [(1, [5] * 30)] * 600}, waits=True))
    assert isinstance(edge.ended[4], QueueFull)
    batches.opened.set()
    [waited] = edge.wait(1, 2, 3)[:1]
    check(waited, alone(host, [(1, [5, 6])]))
    assert list(edge.ended)[-1] == 1


def test_a_closed_engine_ends_everything_with_its_error(engine: Engine, batches: Batches) -> None:
    edge = Edge(engine)
    hold(engine, batches)
    edge.lane.submit(block({1: [(1, [5, 6])]}))
    engine.close(0)
    assert all(isinstance(error, ShuttingDown) for error in edge.wait(1))
    edge.lane.submit(block({2: [(1, [5, 6])], 3: [(1, [5])]}))
    assert all(isinstance(error, ShuttingDown) for error in edge.wait(2, 3))


def test_the_servers_own_question_gets_each_tasks_shape(host: Host, engine: Engine) -> None:
    slot = host.bank.install(far_row(BASE, "bitfit", labels=3, seed=9, pooling="none"))
    texts = [[5, 6, 7], [8]]
    found = engine.compute(host, [tokens_of_ids(ids) for ids in texts], slot).result(WAIT)
    assert [each.shape for each in found] == [(3, 3), (1, 3)]
    check(found, alone(host, [(slot, ids) for ids in texts]))
    host.bank.release(slot)
