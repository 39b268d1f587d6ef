"""The engine: every caller gets its own answers, in order, whatever waits, leaves, fails or closes beside it."""

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import cache
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from bases import Reference, far_delta, tiny_base
from onebert_encoder.base import Base, load_base
from onebert_encoder.fold import fold
from onebert_encoder.tokens import Tokens
from onebert_server.bank import Bank
from onebert_server.engine import Engine, EngineLimits, Item
from onebert_store.errors import EngineFailed, QueueFull, ShuttingDown, TooLarge

KINDS = ("bitfit", "layernorm", "lora", "spafit", "frozen", "everything")
WAIT = 60.0


@cache
def base() -> Base:
    return load_base(str(tiny_base("bert")))


@cache
def bank() -> tuple[Bank, dict[int, Reference]]:
    filled, references = Bank(base()), {}
    for seed in range(12):
        tensors = far_delta(base().spec, KINDS[seed % len(KINDS)], "mean", labels=2 + seed % 4, seed=seed)
        slot = filled.install(fold(base(), {n: torch.from_numpy(v) for n, v in tensors.items()}, "mean"))
        references[slot] = Reference(tiny_base("bert"), tensors, "mean")
    return filled, references


class Gate:
    """Holds the engine's thread after its first batch until it is opened; counts batches."""

    def __init__(self) -> None:
        self.entered, self.opened = Event(), Event()
        self.batches: list[tuple[int, int]] = []

    def observe_batch(self, sequences: int, tokens: int, seconds: float) -> None:
        self.batches.append((sequences, tokens))
        self.entered.set()
        assert self.opened.wait(WAIT)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def engine(gate: Gate) -> Iterator[Engine]:
    limits = EngineLimits(max_batch_tokens=128, max_queue_sequences=40, max_queue_tokens=1000)
    running = Engine(base(), bank()[0], limits, gate)
    running.start()
    yield running
    gate.opened.set()
    running.close(WAIT)


def item(slot: int, length: int = 8, seed: int = 0) -> Item:
    ids = np.random.default_rng(seed).integers(5, base().config.vocab_size, length).tolist()
    return Item(Tokens(ids, [0] * length), slot)


def hold(engine: Engine, gate: Gate) -> Future[Any]:
    """Submits one item and returns when the engine sits behind the gate."""
    held = engine.submit([item(1)])
    assert gate.entered.wait(WAIT)
    return held


def check(items: list[Item], answers: list[np.ndarray]) -> None:
    for one, logits in zip(items, answers, strict=True):
        wanted = bank()[1][one.slot].logits(one.tokens.input_ids).numpy()
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
                return check(request, engine.submit(request).result(WAIT))
            except QueueFull:
                continue

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, requests))


def test_what_waits_goes_together_up_to_the_token_budget(engine: Engine, gate: Gate) -> None:
    held = hold(engine, gate)
    futures = [engine.submit([item(1 + i, length=30, seed=i)]) for i in range(6)]
    assert (engine.waiting_sequences, engine.waiting_tokens) == (6, 180)
    gate.opened.set()
    for future in [held, *futures]:
        future.result(WAIT)
    engine.close(WAIT)
    assert gate.batches == [(1, 8), (4, 120), (2, 60)]


def test_a_request_larger_than_a_batch_is_answered_in_order(engine: Engine, gate: Gate) -> None:
    gate.opened.set()
    items = [item(1 + i % 12, length=25, seed=i) for i in range(20)]
    check(items, engine.submit(items).result(WAIT))


def test_a_full_queue_refuses_at_once_and_recovers(engine: Engine, gate: Gate) -> None:
    hold(engine, gate)
    waiting = [engine.submit([item(1)] * 20) for _ in range(2)]
    with pytest.raises(QueueFull) as refused:
        engine.submit([item(1)])
    assert refused.value.status == 503
    assert refused.value.retry_after is not None
    gate.opened.set()
    assert all(len(future.result(WAIT)) == 20 for future in waiting)
    assert len(engine.submit([item(1)]).result(WAIT)) == 1


def test_waiting_tokens_are_bounded_too(engine: Engine, gate: Gate) -> None:
    hold(engine, gate)
    engine.submit([item(1, length=60)] * 16)
    with pytest.raises(QueueFull):
        engine.submit([item(1, length=60)])


def test_a_caller_who_left_costs_nothing(engine: Engine, gate: Gate) -> None:
    hold(engine, gate)
    leaving, staying = engine.submit([item(1)] * 3), engine.submit([item(2)])
    assert leaving.cancel()
    gate.opened.set()
    check([item(2)], staying.result(WAIT))
    engine.close(WAIT)
    assert gate.batches == [(1, 8), (1, 8)]
    with pytest.raises(CancelledError):
        leaving.result(WAIT)


def test_a_task_that_gives_nan_touches_nobody_beside_it(engine: Engine, gate: Gate) -> None:
    tensors = far_delta(base().spec, "bitfit", "mean", labels=2, seed=3)
    tensors["delta.encoder.layer.0.output.dense.bias"][:] = np.nan
    slot = bank()[0].install(fold(base(), {n: torch.from_numpy(v) for n, v in tensors.items()}, "mean"))
    hold(engine, gate)
    mixed, good = engine.submit([item(slot), item(1)]), engine.submit([item(4), item(5)])
    gate.opened.set()
    broken, beside = mixed.result(WAIT)
    assert np.isnan(broken).all()
    check([item(1)], [beside])
    check([item(4), item(5)], good.result(WAIT))
    bank()[0].release(slot)


def test_nothing_more_is_run_of_a_request_that_has_failed(engine: Engine, gate: Gate) -> None:
    """Its rows are given back when it fails, and may be somebody else's when the rest of it would run."""
    hold(engine, gate)
    outside_the_vocabulary = Item(Tokens([10**9] * 60, [0] * 60), 1)
    split = engine.submit([outside_the_vocabulary, *[item(2, length=60)] * 3])
    neighbor = engine.submit([item(4, length=60)])
    gate.opened.set()
    with pytest.raises(EngineFailed):
        split.result(WAIT)
    check([item(4, length=60)], neighbor.result(WAIT))
    engine.close(WAIT)
    assert gate.batches == [(1, 8), (1, 60)]


def test_what_can_never_wait_is_refused_for_good(engine: Engine, gate: Gate) -> None:
    gate.opened.set()
    with pytest.raises(TooLarge):
        engine.submit([item(1)] * 41)


def test_an_engine_that_does_not_run_says_so() -> None:
    stopped = Engine(base(), bank()[0], EngineLimits(128, 40, 1000))
    assert not stopped.alive
    with pytest.raises(EngineFailed):
        stopped.submit([item(1)])


def test_a_failed_batch_is_reported_and_the_engine_lives_on(engine: Engine, gate: Gate) -> None:
    gate.opened.set()
    outside_the_vocabulary = Item(Tokens([10**9], [0]), 1)
    with pytest.raises(EngineFailed):
        engine.submit([outside_the_vocabulary]).result(WAIT)
    assert engine.alive
    check([item(1)], engine.submit([item(1)]).result(WAIT))


def test_closing_answers_what_was_admitted_and_takes_nothing_new(engine: Engine, gate: Gate) -> None:
    hold(engine, gate)
    admitted = [engine.submit([item(1 + i)]) for i in range(5)]
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(engine.close, WAIT)
        while engine.alive:
            pass
        with pytest.raises(ShuttingDown):
            engine.submit([item(1)])
        gate.opened.set()
        closing.result(WAIT)
    for i, future in enumerate(admitted):
        check([item(1 + i)], future.result(0))


def test_closing_in_haste_tells_those_who_still_wait(engine: Engine, gate: Gate) -> None:
    hold(engine, gate)
    left = engine.submit([item(1)])
    engine.close(0)
    with pytest.raises(ShuttingDown):
        left.result(WAIT)


def test_logits_of_every_token_come_in_their_shape_between_those_of_sequences(engine: Engine, gate: Gate) -> None:
    gate.opened.set()
    tensors = far_delta(base().spec, "spafit", "none", labels=3, seed=20)
    slot = bank()[0].install(fold(base(), {n: torch.from_numpy(v) for n, v in tensors.items()}, "none"))
    reference = Reference(tiny_base("bert"), tensors, "none")
    items = [item((slot, 1, 5)[i % 3], length=3 + i, seed=i) for i in range(12)]
    for one, logits in zip(items, engine.submit(items).result(WAIT), strict=True):
        if one.slot != slot:
            check([one], [logits])
            continue
        assert logits.shape == (len(one.tokens), 3)
        np.testing.assert_allclose(logits, reference.logits(one.tokens.input_ids), rtol=0, atol=1e-4)
    bank()[0].release(slot)


def test_one_text_for_many_tasks_runs_once_where_it_can(engine: Engine, gate: Gate) -> None:
    gate.opened.set()
    text = item(1, length=12).tokens
    items = [Item(text, slot) for slot in bank()[1]]
    check(items, engine.submit(items).result(WAIT))


class Threads:
    """Records how many threads the engine's own thread computes on."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def observe_batch(self, sequences: int, tokens: int, seconds: float) -> None:
        self.seen.append(torch.get_num_threads())


def test_the_engine_alone_computes_on_the_threads_it_is_given() -> None:
    before, threads = torch.get_num_threads(), Threads()
    made = Engine(base(), bank()[0], EngineLimits(128, 40, 1000), threads, threads=before + 1)
    made.start()
    made.submit([Item(Tokens([5, 9, 3], [0] * 3), next(iter(bank()[1])))]).result(WAIT)
    made.close(WAIT)
    assert threads.seen == [before + 1]
    assert torch.get_num_threads() == before
