"""The engine: every caller gets its own answers, in order, whatever waits, leaves, fails or closes beside it."""

import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from bases import Reference, far_task, loaded, tiny_base
from lanes import Item, Request
from lanes import submit as submit_to
from onebert_encoder.maths import encode, predict
from onebert_encoder.maths.batch import BASE_ROW
from onebert_encoder.maths.encode import Pass
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import Context
from onebert_server.engine import engine as engine_module
from onebert_server.engine import host as host_module
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.host import Host, HostCopy, Speed
from onebert_server.engine.queue import QueueLimits
from onebert_store.errors import DeadlineExceeded, EngineFailed, QueueFull, ShuttingDown
from parts import context

KINDS = ("bitfit", "layernorm", "lora", "spafit", "frozen", "everything")
# Only ends a test that fails.
WAIT = 600.0
LIMITS = EngineLimits(128, QueueLimits(max_sequences=80, max_tokens=2000))


base = loaded


@cache
def bank() -> tuple[Bank, dict[int, Reference]]:
    filled, references = Bank(base()), {}
    for seed in range(12):
        row, tensors = far_task(base(), KINDS[seed % len(KINDS)], labels=2 + seed % 4, seed=seed)
        references[filled.install(row)] = Reference(tiny_base("bert"), tensors, "mean")
    return filled, references


def uses(slot: int) -> int:
    """How many sequences that wait or run use a row."""
    return int(bank()[0].uses[slot])


class Gate:
    """Holds the engine's thread after its first batch until it is opened; counts batches."""

    def __init__(self) -> None:
        self.entered, self.opened = Event(), Event()
        self.batches: list[tuple[int, int]] = []
        self.waits: list[float] = []
        self.dropped: list[str] = []
        self.left: list[tuple[int, int, int]] = []

    def observe_batch(self, sequences: int, tokens: int, seconds: float) -> None:
        self.batches.append((sequences, tokens))
        self.entered.set()
        assert self.opened.wait(WAIT)

    def observe_waits(self, seconds: list[float]) -> None:
        self.waits += seconds

    def count_dropped(self, why: str, requests: int) -> None:
        self.dropped += [why] * requests

    def count_left(self, waiting: int, running: int, computed: int) -> None:
        self.left.append((waiting, running, computed))


@pytest.fixture
def gate() -> Gate:
    return Gate()


def started(*observer: Gate, limits: EngineLimits = LIMITS, **more: Any) -> Engine:
    engine = Engine([Host(base(), bank()[0])], limits, *observer, **more)
    engine.start()
    return engine


@pytest.fixture(params=[False, True], ids=["one-batch-at-a-time", "overlapping"])
def engine(gate: Gate, request: pytest.FixtureRequest) -> Iterator[Engine]:
    running = started(gate, overlaps=request.param)
    yield running
    gate.opened.set()
    running.close(WAIT)


def item(slot: int, length: int = 8, seed: int = 0) -> Item:
    ids = np.random.default_rng(seed).integers(5, base().config.vocab_size, length).tolist()
    return Item(Tokens(ids, [0] * length), slot)


def submit(engine: Engine, items: list[Item], asked: Context | None = None, **more: Any) -> Request:
    return submit_to(engine, *engine.hosts.values(), items, asked or context(), **more)


def hold(engine: Engine, gate: Gate) -> Request:
    """Submits one item and returns when the engine sits behind the gate."""
    held = submit(engine, [item(1)])
    assert gate.entered.wait(WAIT)
    return held


def check(items: list[Item], answers: list[np.ndarray]) -> None:
    for asked, logits in zip(items, answers, strict=True):
        wanted = bank()[1][asked.slot].logits(asked.tokens.input_ids).numpy()
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)


def test_callers_in_many_threads_get_their_own_answers(engine: Engine, gate: Gate) -> None:
    gate.opened.set()
    rng = np.random.default_rng(1)
    requests = [
        [item(int(rng.choice(list(bank()[1]))), int(rng.integers(1, 40)), int(rng.integers(1000))) for _ in range(n)]
        for n in rng.integers(0, 6, 30)
    ]

    def ask(request: list[Item]) -> None:
        while True:
            try:
                return check(request, submit(engine, request).result(WAIT))
            except QueueFull:
                continue

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, requests))


def test_rows_of_who_left_stay_while_they_are_read(engine: Engine, gate: Gate) -> None:
    held = submit(engine, [item(1, length=65)] * 3)
    assert gate.entered.wait(WAIT)
    assert held.cancel()
    assert engine.queue.sequences == 0, "what had not begun is dropped at once"
    assert uses(1) == engine._overlaps, "the batch under way still reads its row"
    gate.opened.set()
    engine.close(WAIT)
    assert uses(1) == 0
    # An engine that overlaps has launched the next one by then, too.
    assert gate.batches == [(1, 65)] * (1 + engine._overlaps)
    assert gate.left == [(2 - engine._overlaps, int(engine._overlaps), 1)], "waiting, running and computed"


def test_nothing_more_is_run_of_a_request_that_has_failed(engine: Engine, gate: Gate) -> None:
    """Its rows are given back when it fails, and may be somebody else's when the rest of it would run."""
    hold(engine, gate)
    split = submit(engine, [item(BASE_ROW, length=60), *[item(2, length=60)] * 3])
    neighbor = submit(engine, [item(4, length=60)] * 5)
    gate.opened.set()
    with pytest.raises(EngineFailed):
        split.result(WAIT)
    check([item(4, length=60)] * 5, neighbor.result(WAIT))
    engine.close(WAIT)
    assert gate.batches == [(1, 8), (1, 60), (2, 120), (2, 120)]


WITHOUT_A_HEAD = item(BASE_ROW)


def test_a_request_that_breaks_its_batch_fails_alone(engine: Engine, gate: Gate) -> None:
    """Also a text that is asked of many rows keeps its answers, and the batches beside the broken one theirs."""
    hold(engine, gate)
    text = item(1).tokens
    items = [[item(2), item(3, 20)], [Item(text, slot) for slot in bank()[1]], [item(4, 60, seed=i) for i in range(4)]]
    strangers = [submit(engine, some, context(str(i))) for i, some in enumerate(items)]
    broken = [submit(engine, [item(5), WITHOUT_A_HEAD], context(str(i))) for i in range(3)]
    gate.opened.set()
    for some, future in zip(items, strangers, strict=True):
        check(some, future.result(WAIT))
    for future in broken:
        with pytest.raises(EngineFailed):
            future.result(WAIT)
    assert len(submit(engine, [item(1)]).result(WAIT)) == 1
    assert engine.failed_in_a_row == 0


def test_a_request_that_always_fails_is_no_failing_device(engine: Engine, gate: Gate) -> None:
    """Asked again and again beside nobody: otherwise one text would restart the server."""
    gate.opened.set()
    for i in range(12):
        assert isinstance(submit(engine, [WITHOUT_A_HEAD], context(str(i % 3))).exception(WAIT), EngineFailed)
        assert engine.failed_in_a_row == 0


@pytest.mark.parametrize("requests", [4, 1], ids=["of-four-requests", "of-one-request"])
def test_a_batch_without_memory_is_computed_in_smaller_ones(
    engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    [host] = engine.hosts.values()
    launched, memory = host.passes.launch, list[weakref.ref[torch.Tensor]]()

    def launch(inputs: Sequences, slots: np.ndarray) -> Any:
        assert all(tensor() is None for tensor in memory)
        if len(slots) > 1:
            activations = torch.empty(8)
            memory.append(weakref.ref(activations))
            raise torch.OutOfMemoryError
        return launched(inputs, slots)

    hold(engine, gate)
    # The logger of the tests would keep the error.
    monkeypatch.setattr(engine_module.logger, "disabled", True)
    monkeypatch.setattr(host.passes, "launch", launch)
    items = [item(1, length=60, seed=seed) for seed in range(4)]
    futures = [submit(engine, items[i::requests]) for i in range(requests)]
    gate.opened.set()
    for i, future in enumerate(futures):
        check(items[i::requests], future.result(WAIT))
    assert len(memory) == 2


def test_closing_answers_what_was_admitted_and_takes_nothing_new(engine: Engine, gate: Gate) -> None:
    hold(engine, gate)
    admitted = [submit(engine, [item(1 + i)]) for i in range(5)]
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(engine.close, WAIT)
        while engine.alive:
            pass
        with pytest.raises(ShuttingDown):
            submit(engine, [item(1)])
        gate.opened.set()
        closing.result(WAIT)
    for i, future in enumerate(admitted):
        check([item(1 + i)], future.result(0))


def test_closing_in_haste_tells_those_who_still_wait(engine: Engine, gate: Gate) -> None:
    hold(engine, gate)
    left = submit(engine, [item(1)])
    engine.close(0)
    with pytest.raises(ShuttingDown):
        left.result(WAIT)
    with pytest.raises(ShuttingDown):
        submit(engine, [item(1)])


def test_what_waits_for_idle_time_is_answered_last(engine: Engine, gate: Gate) -> None:
    hold(engine, gate)
    requests, answered = [submit(engine, [item(1)], waits=True)], list[Request]()
    requests += [submit(engine, [item(2, length=60)] * 2) for _ in range(2)]
    for request in requests:
        request.add_done_callback(answered.append)
    gate.opened.set()
    check([item(1)], requests[0].result(WAIT))
    assert answered[-1] is requests[0]


def test_tasks_that_share_the_layers_of_a_text_share_a_batch(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """A batch is bounded in what it computes: ten tasks on one frozen encoder cost little more than one."""
    monkeypatch.setattr(engine_module, "measure_speed", lambda base, rows: Speed(1e-9, 1e-6))
    running = started(gate, limits=EngineLimits(1024, LIMITS.queue))
    hold(running, gate)
    frozen, bitfit = (1 + KINDS.index(kind) for kind in ("frozen", "bitfit"))
    text = item(1, length=30).tokens
    futures = [submit(running, [Item(text, slot)] * 10) for slot in (frozen, bitfit)]
    gate.opened.set()
    for future in futures:
        future.result(WAIT)
    running.close(WAIT)
    assert gate.batches == [(1, 8), (20, 600)]


def test_the_speed_is_learned_from_computed_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that leave the base at different layers share a text up to there; a batch of these is no faster machine."""
    ran: list[int] = []
    observed: list[float] = []
    layer = Pass.layer

    def counted(batch: Pass, number: int, x: torch.Tensor) -> torch.Tensor:
        ran.append(len(x) - batch.stage.filling)
        return layer(batch, number, x)

    class Noted(Speed):
        def observe(self, tokens: float, seconds: float) -> None:
            observed.append(tokens)

    monkeypatch.setattr(Pass, "layer", counted)
    for module in (encode, predict):
        monkeypatch.setattr(module, "choose_forward", lambda *_: None)
    monkeypatch.setattr(engine_module, "measure_speed", lambda base, rows: Noted())
    running = started(limits=EngineLimits(1024, LIMITS.queue))
    text = item(1, length=12).tokens
    for items in [Item(text, slot) for slot in bank()[1]], [item(1), item(2, length=30, seed=1)]:
        check(items, submit(running, items).result(WAIT))
    running.close(WAIT)
    layers = base().config.num_layers
    assert observed == [sum(ran[:layers]) / layers, sum(ran[layers:]) / layers]
    assert observed[0] < 12 * len(bank()[1])
    assert observed[1] == 38


@pytest.mark.parametrize(("overlaps", "order"), [(False, "0a 0b 1a 1b 2a 2b 3a 3b"), (True, "0a 1a 0b 2a 1b 2b 3a 3b")])
def test_a_full_batch_is_launched_while_the_one_before_it_runs(
    monkeypatch: pytest.MonkeyPatch, overlaps: bool, order: str
) -> None:
    """The last one is not full for all the engine knows, so it waits for company."""
    events: list[str] = []

    class Noted(HostCopy):
        def __init__(self, tensor: torch.Tensor) -> None:
            super().__init__(tensor)
            self._number = sum(event.endswith("a") for event in events)
            events.append(f"{self._number}a")

        def read(self) -> np.ndarray:
            events.append(f"{self._number}b")
            return super().read()

    monkeypatch.setattr(host_module, "HostCopy", Noted)
    running, items = started(overlaps=overlaps), [item(1 + i % 12, length=25, seed=i) for i in range(20)]
    check(items, submit(running, items).result(WAIT))
    running.close(WAIT)
    assert " ".join(events) == order


class Reads:
    """Of each batch of an engine that overlaps: whether the request that it holds had ended when its answers were read.

    Attributes:
        request: the one; before it is set, nothing is noted.
        packed: is told of each batch that was launched.
        lost: numbers of the reads that fail.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.request: Future[Any] | None = None
        self.ended: list[bool] = []
        self.packed: Callable[[], None] = lambda: None
        self.lost: set[int] = set()
        reads = self

        class Noted(HostCopy):
            def __init__(self, tensor: torch.Tensor) -> None:
                super().__init__(tensor)
                reads.packed()

            def read(self) -> np.ndarray:
                if reads.request is not None:
                    reads.ended.append(reads.request.done())
                if len(reads.ended) - 1 in reads.lost:
                    raise RuntimeError("the device failed")
                return super().read()

        monkeypatch.setattr(host_module, "HostCopy", Noted)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.mark.parametrize("engine", [True], indirect=True)
@pytest.mark.parametrize("lost", ["launched", "landing"])
def test_a_request_fails_only_when_no_other_batch_reads_its_rows(
    engine: Engine, gate: Gate, reads: Reads, lost: str
) -> None:
    """Its rows are given back when it fails; one of its batches fails while another one is in the air."""
    parts = [item(1, length=65, seed=i) for i in range(3)]
    if lost == "launched":
        parts[1] = item(BASE_ROW, length=65)
    else:
        reads.lost = {0}
    hold(engine, gate)
    reads.request = submit(engine, parts)
    gate.opened.set()
    with pytest.raises(EngineFailed):
        reads.request.result(WAIT)
    assert len(submit(engine, [item(2, length=65)] * 4).result(WAIT)) == 4
    engine.close(WAIT)
    assert reads.ended[: 1 + len(reads.lost)] == [False] * (1 + len(reads.lost))


def test_requests_of_a_batch_that_fails_late_are_answered(engine: Engine, gate: Gate, reads: Reads) -> None:
    """A GPU reports the error of a pass when its answers are read."""
    hold(engine, gate)
    reads.lost = {0}
    reads.request, other = submit(engine, [item(1, length=60)]), submit(engine, [item(2, length=60)])
    gate.opened.set()
    check([item(1, length=60)], reads.request.result(WAIT))
    check([item(2, length=60)], other.result(WAIT))
    assert len(reads.ended) == 3


def test_a_device_that_hangs_does_not_hold_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server then listens, and its health reports the pass that does not end."""
    entered, released = Event(), Event()

    def hang(*_: Any) -> Speed:
        entered.set()
        assert released.wait(WAIT)
        return Speed()

    monkeypatch.setattr(engine_module, "MEASURE_TIMEOUT", 0.01)
    monkeypatch.setattr(engine_module, "measure_speed", hang)
    engine = started()
    try:
        assert entered.wait(WAIT)
        assert engine.pass_seconds > 0
    finally:
        released.set()
        engine.close(WAIT)


@pytest.mark.parametrize("engine", [False], indirect=True)
def test_who_left_a_broken_batch_is_not_computed_again(
    engine: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    [host] = engine.hosts.values()
    batches, launched = list[list[int]](), host.passes.launch

    def launch(inputs: Sequences, slots: np.ndarray) -> Any:
        batches.append(slots.tolist())
        if len(slots) == 3:
            assert leaving.cancel()
            assert uses(1) == 1, "this batch reads its rows"
        return launched(inputs, slots)

    hold(engine, gate)
    monkeypatch.setattr(host.passes, "launch", launch)
    leaving, broken, staying = (submit(engine, [item(slot)]) for slot in (1, BASE_ROW, 2))
    gate.opened.set()
    check([item(2)], staying.result(WAIT))
    assert isinstance(broken.exception(WAIT), EngineFailed)
    engine.close(WAIT)
    assert uses(1) == 0
    assert batches == [[1, BASE_ROW, 2], [BASE_ROW], [2]]


@pytest.mark.parametrize("engine", [True], indirect=True)
def test_a_late_request_ends_when_no_batch_reads_its_rows(engine: Engine, gate: Gate, reads: Reads) -> None:
    hold(engine, gate)
    asked = context(seconds=1.0)
    reads.request = submit(engine, [item(1, length=65, seed=i) for i in range(3)], asked)

    def wait() -> None:
        while time.monotonic() <= asked.deadline:
            pass

    reads.packed = wait
    gate.opened.set()
    with pytest.raises(DeadlineExceeded):
        reads.request.result(WAIT)
    engine.close(WAIT)
    assert reads.ended == [False]
    assert gate.dropped == ["deadline"]
