"""Who goes next, simulated: the engine as it is, on a clock that only a made-up device moves.

Arrivals are drawn with fixed seeds, a batch takes a start and so much for each token, and nothing here depends on how
fast this machine is or how long the test takes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import Event

import numpy as np
import pytest
import torch

from bases import tiny_base
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.batch import BASE_ROW
from onebert_server.access.principal import root
from onebert_server.engine import engine as engine_module
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.block import REQUEST, SEQUENCE, Block
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.host import LEAST_SECONDS, Host, HostCopy, Launched, Speed
from onebert_server.engine.queue import QueueLimits
from onebert_server.run.opening import MAX_BATCH_SECONDS
from onebert_server.settings import Settings
from onebert_store.errors import DeadlineExceeded, OneBertError

# Only ends a test that fails.
WAIT = 600.0
DEFAULTS = Settings.model_construct()
MAX_WAIT = DEFAULTS.max_queue_seconds
INFINITY = float("inf")
SHORT = 64


@dataclass(frozen=True)
class Cost:
    """Seconds of a batch: those beside its tokens, and those of each token."""

    start: float
    per_token: float

    def of(self, tokens):
        return self.start + tokens * self.per_token


ONE_CALL = Cost(0.25e-3, 27e-6)


@dataclass(eq=False)
class Asked:
    """A request, and what became of it."""

    at: float
    lengths: Sequence[int]
    principal: str = "someone"
    patience: float = INFINITY
    ended: float = INFINITY
    error: OneBertError | None = None
    refused: bool = False

    @property
    def waited(self):
        return self.ended - self.at


class Clock:
    """What everybody takes for the time."""

    now = 0.0


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(Clock, "now", 0.0)


@cache
def base():
    """One that takes long texts."""
    return load_base(str(tiny_base(max_position_embeddings=512)))


class Passes:
    """Takes the time of a pass, while requests come."""

    def __init__(self, device):
        self._device = device
        self.costs = device.host.passes.costs

    def launch(self, inputs, slots):
        tokens = int(inputs.lengths.sum())
        self._device.let_come(Clock.now + self._device.cost.of(tokens))
        sizes = np.full(len(slots), 2)
        return Launched(sizes, np.zeros(len(slots), int), HostCopy(torch.zeros(2 * len(slots))), tokens)


class Device(Engine):
    """An engine that computes nothing and takes its time for it. Requests come while it does, and at their own times.

    Attributes:
        batches: the tokens of each sequence of each batch, in the order in which they began.
    """

    def __init__(self, monkeypatch, cost, asked):
        queue = QueueLimits(max_seconds=MAX_WAIT)
        self.host = Host(base(), Bank(base()))
        super().__init__([self.host], EngineLimits(DEFAULTS.max_batch_tokens, queue, MAX_BATCH_SECONDS))
        monkeypatch.setattr(engine_module, "measure_speed", lambda base, rows: Speed(cost.start, cost.per_token))
        self.host.speed = Speed(cost.start, cost.per_token)
        self._note_speed()
        self.batches = []
        self.cost = cost
        self.host.passes = Passes(self)
        self._coming = deque(sorted(asked, key=lambda question: question.at))
        self._edge = self.lane(self._ended)
        self._asked = []
        self._all_ended = Event()

    def run(self):
        """Until everything that comes has ended; it comes while a first request of somebody else is computed."""
        self.start()
        self._submit(Asked(0.0, [5], "first"))
        assert self._all_ended.wait(WAIT)
        self.close(WAIT)

    def launch(self, taken):
        asked = [self._asked[request.number] for request, first, stop in taken.parts for _ in range(first, stop)]
        assert all(question.at + question.patience > Clock.now for question in asked), (
            "what is late costs no forward pass"
        )
        self.batches.append(taken.inputs.lengths.tolist())
        super().launch(taken)

    def land(self, taken):
        super().land(taken)
        while self._coming and not self.queue.sequences:
            self.let_come(max(self._coming[0].at, Clock.now))
        if not self._coming and not self.queue.sequences:
            self._all_ended.set()

    def let_come(self, until):
        while self._coming and self._coming[0].at <= until:
            question = self._coming.popleft()
            Clock.now = max(question.at, Clock.now)
            self._submit(question)
        Clock.now = until

    def _submit(self, question):
        requests, sequences = np.zeros(1, REQUEST), np.zeros(len(question.lengths), SEQUENCE)
        requests["number"], requests["sequences"], requests["submitted"] = (
            len(self._asked),
            len(question.lengths),
            Clock.now,
        )
        requests["deadline"] = question.at + question.patience
        sequences["tokens"], sequences["text"] = question.lengths, np.arange(len(question.lengths))
        sequences["generation"] = self.host.bank.generation[BASE_ROW]
        self._asked.append(question)
        block = Block([root(question.principal)], requests, sequences, np.full(sum(question.lengths), 5, np.int32))
        question.refused = True
        self._edge.submit(block)
        question.refused = question.error is not None

    def _ended(self, ended):
        for number, error, *_ in ended.requests.tolist():
            question = self._asked[number]
            question.ended, question.error = Clock.now, None if error < 0 else ended.errors[error]


def simulate(monkeypatch, cost, asked):
    device = Device(monkeypatch, cost, asked)
    device.run()
    return device


def mixed(count, seed=0):
    """Tokens of texts: sentences, and one review among ten."""
    random = np.random.default_rng(seed)
    short = np.clip(random.normal(24, 12, count), 6, 96)
    long = np.clip(random.lognormal(5.5, 0.5, count), SHORT + 1, 512)
    return np.where(random.random(count) < 0.1, long, short).astype(int).tolist()


def poisson(lengths, cost, load, principals=1, seed=1):
    """Single texts that come at a share of what the device could do in batches without an end."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(np.mean(lengths) * cost.per_token / load, len(lengths))
    who = random.integers(0, principals, len(lengths))
    return [Asked(at, [n], f"principal {p}") for at, n, p in zip(np.cumsum(gaps), lengths, who, strict=True)]


@pytest.mark.parametrize(("load", "principals"), [(0.8, 4), (2.0, 1), (2.0, 3)])
def test_everybody_who_is_let_in_is_served_within_a_bound(monkeypatch, load, principals):
    """Texts of a principal are computed in the order in which they came.

    At most the longest wait, and one request more, is before one. While that is served, each other principal is served
    as much. Besides there is the batch under way, and its own.
    """
    asked = poisson(mixed(2_000), ONE_CALL, load, principals)
    device = simulate(monkeypatch, ONE_CALL, asked)
    let_in = [question for question in asked if not question.refused]
    assert all(question.error is None for question in let_in)
    assert sum(map(len, device.batches)) == len(let_in) + 1
    assert len(let_in) == len(asked) or load > 1
    largest = ONE_CALL.of(512)
    bound = 1.02 * principals * (MAX_WAIT + largest) + 2 * largest
    assert max(question.waited for question in let_in) <= bound


@pytest.mark.parametrize(("flood", "batches"), [([24] * 6_000, 2), (mixed(3_000), 3)], ids=["sentences", "mixed"])
def test_a_short_text_waits_for_two_batches_of_a_flood(monkeypatch, flood, batches):
    """For one more only where a text of 512 tokens that is next fills that batch."""
    flooding = poisson(flood, ONE_CALL, 3.0)
    probes = [Asked(at, [24], "other") for at in np.arange(0.1, flooding[-1].at, 0.02)]
    device = simulate(monkeypatch, ONE_CALL, [*flooding, *probes])
    assert any(question.refused for question in flooding)
    assert not any(question.refused for question in probes)
    assert max(question.waited for question in probes) <= batches * ONE_CALL.of(device.queue.lines[0].batch_tokens)


@pytest.mark.parametrize(("principal", "batches"), [("large", 4), ("other", 2)], ids=["one's own", "another's"])
@pytest.mark.parametrize("length", [32, 512], ids=["explanations", "long texts"])
def test_a_short_text_waits_for_two_batches_of_large_requests(monkeypatch, length, principal, batches):
    lengths, until = [length] * (20_000 // length), 6.0
    large = [Asked(at, lengths, "large") for at in np.arange(0.0, until, 0.6)]
    probes = [Asked(at, [24], principal) for at in np.arange(0.1, until, 0.0513)]
    device = simulate(monkeypatch, ONE_CALL, [*large, *probes])
    assert not any(question.refused for question in [*large, *probes])
    assert max(question.waited for question in probes) <= 1.02 * batches * ONE_CALL.of(
        device.queue.lines[0].batch_tokens
    )


@pytest.mark.parametrize("lengths", [[512] * 64, [64] * 64, [510, 30] * 8], ids=["long texts", "explained", "mixed"])
@pytest.mark.parametrize("per_token", [0.55e-3, 27e-6])
def test_a_short_text_waits_for_one_text_of_large_requests(monkeypatch, lengths, per_token):
    """Four times as much comes as the device computes. On a slow processor one text of 512 tokens takes 0.28 s."""
    cost, until = Cost(0.1e-3 + 1.6 * per_token, per_token), 4.0
    probes = [Asked(at, [24], "other") for at in np.arange(0.1, until, 12.3 * cost.of(24))]
    large = [Asked(at, lengths, "large") for at in np.arange(0.0, until, sum(lengths) * per_token / 4)]
    device = simulate(monkeypatch, cost, [*large, *probes])
    assert not any(probe.refused for probe in probes)
    bounds = 5 * cost.of(24), 2 * LEAST_SECONDS + 3 * cost.of(24), cost.of(max(lengths)) + 4 * cost.of(24)
    assert max(probe.waited for probe in probes) <= max(bounds)
    computed = sum(map(sum, device.batches))
    assert cost.per_token * computed >= 0.9 * Clock.now, "and the device is never idle, nor busy with small batches"


def test_what_is_computed_is_rarely_late(monkeypatch):
    """The device itself sees to the first."""
    asked = poisson(mixed(3_000), ONE_CALL, 1.5, principals=2)
    random = np.random.default_rng(2)
    for question in asked:
        question.patience = random.uniform(0.005, 0.5)
    simulate(monkeypatch, ONE_CALL, asked)
    let_in = [question for question in asked if not question.refused]
    late = [question for question in let_in if question.error is not None]
    assert all(isinstance(question.error, DeadlineExceeded) for question in late)
    assert 0 < len(late) < 0.1 * len(let_in)
    assert any(question.refused for question in asked)


def test_a_tight_deadline_that_is_let_in_is_kept(monkeypatch):
    """Short texts that come later go ahead of it no more than its deadline leaves."""
    sentences = poisson([16] * 12_000, ONE_CALL, 1.6)
    long = [Asked(at, [512], sentences[0].principal, 0.6) for at in np.arange(0.05, sentences[-1].at, 0.1)]
    simulate(monkeypatch, ONE_CALL, [*sentences, *long])
    let_in = [question for question in long if not question.refused]
    assert 5 < len(let_in) < len(long)
    assert all(question.error is None for question in let_in)
