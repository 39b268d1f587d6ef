"""The forward pass in one call against the one that goes operation by operation, and whatever its threads do."""

import os
import resource
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bases import far_row, random_texts, tiny_base, write_base
from batches import heads_of, logits_of, packed
from lengths import examples
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.compute.kernels.library import find_library
from onebert_encoder.compute.kernels.products import load_products
from onebert_encoder.compute.trained import TrainedTiles
from onebert_encoder.layout.branches import Branch, Branches, Core, LowRank
from onebert_encoder.layout.dropout import NO_DROPOUT
from onebert_encoder.maths.batch import Batch, pack
from onebert_encoder.maths.choose import choose_forward, choose_kernels
from onebert_encoder.maths.encode import encode, passes_of, run_passes
from onebert_encoder.maths.flat import Flat
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.forward import Forward
from onebert_encoder.maths.heads import classify
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Number, Rows, diverges_at, stack_rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from stages import bottleneck, directions, draw, low_rank, needs_kernels, sparse

KINDS = ("bitfit", "gains", "lora", "spafit", "sparse", "adapter", "scale", "output-scale", "everything", "lora-xs")
DTYPES = [torch.float32, torch.bfloat16, torch.int8]
# Of vectors of order 1 to 4. float32: sums in another order. bfloat16: here only what products read is rounded, there
# each result too, to 8 bits three times a layer. int8: bfloat16 around it, and a number that lies between two of the
# 256 may become another one.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.15, torch.int8: 0.3}

pytestmark = [needs_kernels, pytest.mark.usefixtures("two_threads", "answering")]

drawn_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@pytest.fixture
def answering() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def zoo(dtype: torch.dtype, folder: Path | None = None) -> tuple[Base, Rows, list[int]]:
    """A task of every kind; row 0 is the bare base."""
    with torch.inference_mode():
        base = load_base(str(folder or tiny_base("bert")), dtype=dtype)
        bare = fold(base, {})
        rows = [bare, *(far_row(base, kind, labels=2 + i % 3, seed=i) for i, kind in enumerate(KINDS))]
        return base, stack_rows(base, rows), [diverges_at(row, bare, base) for row in rows]


def one_call(base: Base) -> Forward:
    return cast(Forward, choose_forward(base, NO_DROPOUT))


def texts_of(lengths: Sequence[int]) -> list[Tokens]:
    return random_texts(lengths, seed=len(lengths))


def encoded(base: Base, rows: Rows, batch: Batch) -> tuple[Tensor, Tensor]:
    """[tokens, h] by one call, and operation by operation, without the filling."""
    tokens = int(batch.stages[-1].lengths.sum())
    passes = passes_of(base, rows, batch, choose_kernels(base, NO_DROPOUT))
    return one_call(base).encode(rows, batch)[:tokens], run_passes(passes, batch)[:tokens].float()


def assert_alike(base: Base, rows: Rows, batch: Batch) -> None:
    tolerance = TOLERANCE[base.precision]
    torch.testing.assert_close(*encoded(base, rows, batch), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=examples(30), deadline=None)
@given(drawn_lengths, st.integers(0, 2**16))
def test_any_mixture_is_what_it_is_operation_by_operation(dtype: torch.dtype, lengths: list[int], seed: int) -> None:
    base, rows, _ = zoo(dtype)
    chosen = np.random.default_rng(seed).integers(0, len(KINDS) + 1, len(lengths)).tolist()
    assert_alike(base, rows, packed(base, texts_of(lengths), chosen))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["electra", "mpnet", "modernbert", "gte", "nomic_bert", "eurobert"])
def test_every_family_goes_in_one_call(dtype: torch.dtype, family: str) -> None:
    base, rows, low = zoo(dtype, tiny_base(family))
    lengths, chosen = [23, 5, 40, 1, 17, 60 if family in ("electra", "mpnet") else 90], [3, 0, 9, 5, 3, 8]
    assert_alike(base, rows, packed(base, texts_of(lengths), chosen))
    assert_alike_alone(base, rows, lengths, chosen)
    every = list(range(1, len(low)))
    assert_alike(base, rows, packed(base, texts_of([23]) * len(every), every, [low[row] for row in every]))


def test_silu_without_a_gate_is_no_gelu(tmp_path: Path) -> None:
    base, rows, _ = zoo(torch.float32, write_base("bert", tmp_path, hidden_act="silu"))
    assert_alike(base, rows, packed(base, texts_of([23, 5, 40]), [3, 0, 9]))


def test_the_longest_text_has_the_same_bits_among_others(tmp_path: Path) -> None:
    """8,192 tokens, in layers with and without a window; one token more is refused, and nothing is read."""
    folder = write_base("modernbert", tmp_path, max_position_embeddings=8192, num_hidden_layers=2)
    base, rows, _ = zoo(torch.float32, folder)
    assert_alike_alone(base, rows, [8192, 8], [3, 5])
    with pytest.raises(IndexError, match="behind its last position"):
        logits_of(base, rows, packed(base, texts_of([8193]), [1]))


def test_a_base_of_odd_widths_goes_in_one_call_too(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 35, "num_attention_heads": 5, "intermediate_size": 37}
    base, rows, _ = zoo(torch.float32, write_base("bert", tmp_path, **sizes))
    lengths, chosen = [23, 5, 40, 1, 17], [3, 0, 9, 5, 3]
    assert_alike(base, rows, packed(base, texts_of(lengths), chosen))
    assert_alike_alone(base, rows, lengths, chosen)


def assert_alike_alone(base: Base, rows: Rows, lengths: list[int], chosen: list[int]) -> None:
    """Each text has the same bits alone and among the others."""
    batch = packed(base, texts_of(lengths), chosen)
    together = batch.of_inputs(one_call(base).encode(rows, batch))
    for text, row, among in zip(texts_of(lengths), chosen, together, strict=True):
        alone = one_call(base).encode(rows, packed(base, [text], [row]))[: len(text)]
        assert torch.equal(among, alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 3, 24])
def test_branches_of_any_rank_are_what_they_are_operation_by_operation(dtype: torch.dtype, rank: int) -> None:
    """Of every kind wherever it may be, several of one row; `test_branches.py` compares the other side with float64."""
    base, rows, _ = zoo(dtype)
    lengths, chosen = [23, 5, 40, 1, 17], [3, 0, 9, 5, 3]
    branched = with_branches(rows, [branches_of(base, rank, seed) for seed in range(len(rows.branches))])
    assert_alike(base, branched, packed(base, texts_of(lengths), chosen))
    assert_alike_alone(base, branched, lengths, chosen)


@pytest.mark.parametrize("dtype", DTYPES)
def test_branches_that_are_not_finite_poison_no_other_text(dtype: torch.dtype) -> None:
    base, rows, _ = zoo(dtype)
    branches = [branches_of(base, 5, seed) for seed in range(len(rows.branches))]
    lengths, chosen = [17, 16, 33], [2, 4, 6]
    fine, poisoned = (packed(base, texts_of(lengths), chosen) for _ in range(2))
    wanted = fine.of_inputs(one_call(base).encode(with_branches(rows, branches), fine))
    site = base.config.num_layers - 1, "qkv"
    torn = cast(LowRank, branches[4][site][0])
    branches[4] = Branches({**branches[4], site: (replace(torn, A=torch.full_like(torn.A, torch.nan)),)})
    got = poisoned.of_inputs(one_call(base).encode(with_branches(rows, branches), poisoned))
    assert [torch.equal(logits, other) for logits, other in zip(got, wanted, strict=True)] == [True, False, True]
    assert got[1].isnan().all()


def with_branches(rows: Rows, branches: list[Branches]) -> Rows:
    numbers = rows.numbers.copy()
    numbers[:, Number.BRANCHES] = 1
    return replace(rows, branches=branches, numbers=numbers)


def branches_of(base: Base, rank: int, seed: int) -> Branches:
    """In the last layer, whose differences no other layer makes larger."""
    h, f, dtype, layer = base.config.hidden_size, base.config.intermediate_size, base.dtype, base.config.num_layers - 1
    branches_by_site: dict[tuple[int, str], tuple[Branch, ...]] = {
        (layer, site): (bottleneck(rank, h, dtype, seed),) for site in ("after_m1", "after_m3")
    }
    for site, into, out in (("qkv", h, 3 * h), ("m1", h, h), ("m2", h, f), ("m3", f, h)):
        core = Core(draw(rank, rank, dtype=dtype, seed=seed).T / rank, directions(24, into, out, dtype, seed))
        branches_by_site[layer, site] = (
            low_rank(rank, into, out, dtype, seed),
            sparse(out + rank, into, out, dtype, seed),
            core,
        )
    return Branches(branches_by_site)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_depend_neither_on_groups_nor_on_threads(dtype: torch.dtype) -> None:
    """All threads share few texts; of many, each takes groups through a layer."""
    base, rows, _ = zoo(dtype)
    lengths = [3, 17, 40, 1, 29, 16, 33, 8] * 12
    texts, chosen = texts_of(lengths), [1 + i % 8 for i in range(len(lengths))]
    alone = [
        one_call(base).encode(rows, packed(base, [text], [row]))[: len(text)]
        for text, row in zip(texts, chosen, strict=True)
    ]
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        for count in (2, 8, 40, len(texts)):
            batch = packed(base, texts[:count], chosen[:count])
            assert all(map(torch.equal, batch.of_inputs(one_call(base).encode(rows, batch)), alone))


def test_heads_of_every_pooling_are_answered_in_the_call() -> None:
    """One, two or no tanh layers, on the mean, the first token and every token, beside each other."""
    base, _, _ = zoo(torch.float32)
    poolings = ("cls", "pooler", "mean", "none")
    tasks = [(pooling, kind) for pooling in poolings for kind in ("bitfit", "everything")]
    rows = stack_rows(base, [far_row(base, kind, pooling) for pooling, kind in tasks])
    heads = [head for head in rows.heads if head is not None]
    assert {len(head.dense) for head in heads} == {0, 1, 2}
    # Lengths and rows in an order that packing changes.
    batch = packed(base, texts_of([21, 3, 34, 1, 13, 40, 2, 8]), range(len(heads)))
    assert not np.array_equal(batch.sequence, np.arange(len(heads)))
    of_batch = heads_of(heads)
    logits = Flat.empty(of_batch, batch)
    x, written = one_call(base).classify(rows, batch, of_batch, logits)
    wanted = classify(of_batch, batch, x, base.config.eps)
    [left] = np.flatnonzero(~written)
    assert (heads[left].pooling, len(heads[left].dense)) == ("none", 1), "the tanh layer on every token"
    for i, (got, want) in enumerate(zip(logits.split(), wanted.split(), strict=True)):
        assert got.shape == want.shape
        if i != left:
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_batch_takes_as_many_calls_for_many_texts_as_for_few() -> None:
    """From its arrays to the flat logits; beside the compiled pass no more than a page of calls of Python."""
    base, rows, _ = zoo(torch.float32)

    def calls(count: int) -> int:
        inputs, chosen = Sequences.of(texts_of([3 + i % 40 for i in range(count)])), np.arange(count) % 3
        made = Counter[str]()

        def compute() -> None:
            compute_logits(base, rows, pack(base, inputs, 1 + chosen, np.full(count, base.config.num_layers)))

        compute()
        sys.setprofile(lambda _frame, event, _argument: made.update([event]))
        try:
            compute()
        finally:
            sys.setprofile(None)
        return made["call"]

    assert calls(20) == calls(200) < 200


def answers_of(base: Base, rows: Rows) -> list[Tensor]:
    """Of so many texts that two threads take groups of them."""
    lengths, chosen = [11, 30, 7, 22] * 12, [1, 3, 5, 8] * 12
    with torch.inference_mode():
        return logits_of(base, rows, packed(base, texts_of(lengths), chosen))


def test_calls_at_the_same_time_do_not_disturb_each_other() -> None:
    """Only one of them has helpers; the others do their work alone."""
    base, rows, _ = zoo(torch.float32)
    wanted, wrong = answers_of(base, rows), []

    def ask() -> None:
        torch.set_num_threads(2)
        for _ in range(50):
            if not all(map(torch.equal, answers_of(base, rows), wanted)):
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_child_process_that_was_forked_has_helpers_of_its_own() -> None:
    base, rows, _ = zoo(torch.float32)
    wanted = answers_of(base, rows)
    assert in_a_child(lambda: all(map(torch.equal, answers_of(base, rows), wanted)))


def test_started_threads_suffice_where_no_more_start() -> None:
    base, rows, _ = zoo(torch.float32)
    wanted = answers_of(base, rows)

    def check() -> bool:
        # There is address space for the stacks of a few threads more, and not for so many.
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
        torch.set_num_threads(64)
        return all(map(torch.equal, answers_of(base, rows), wanted)) and threads_now() < 64

    assert in_a_child(check)


def test_all_compiled_functions_have_the_same_helpers() -> None:
    base, rows, _ = zoo(torch.float32)
    products, library = load_products("cpu", torch.float32), find_library()

    def check() -> bool:
        before = threads_now()
        answers_of(base, rows)
        started = threads_now() - before
        x, weight = torch.randn(40, 256), torch.randn(96, 256)
        TrainedTiles(library, products).multiply(x, weight)
        return started == 1 and threads_now() - before == 1

    assert in_a_child(check)


def threads_now() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def in_a_child(check: Callable[[], bool]) -> bool:
    """The answer of a forked process, which has no helpers yet."""
    child = os.fork()
    if not child:
        torch.set_num_threads(2)
        os._exit(0 if check() else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_outside_the_vocabulary_is_an_error_and_reads_nothing(token: int) -> None:
    base, rows, _ = zoo(torch.float32)
    with pytest.raises(IndexError, match="not in the base's vocabulary"):
        logits_of(base, rows, packed(base, [Tokens([5, token, 6], [0] * 3)], [1]))


def test_a_call_keeps_branches_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, _, _ = zoo(torch.float32)
    rows = stack_rows(base, [far_row(base, kind) for kind in KINDS])
    batch = packed(base, texts_of([9] * len(KINDS)), range(len(KINDS)))
    tokens = 9 * len(KINDS)
    wanted = one_call(base).encode(rows, batch)[:tokens]
    branches = [ref(branch) for by_site in rows.branches for of_site in by_site.values() for branch in of_site]
    call = one_call(base)._run

    def run(*arguments: Any) -> int:
        cast(list[Branches], rows.branches)[:] = [Branches()] * len(KINDS)
        assert all(branch() is not None for branch in branches)
        return call(*arguments)

    monkeypatch.setattr(one_call(base), "_run", run)
    assert branches
    assert torch.equal(one_call(base).encode(rows, batch)[:tokens], wanted)
    assert all(branch() is None for branch in branches), "and no longer"


def test_a_word_table_may_have_another_dtype() -> None:
    base = zoo(torch.bfloat16)[0]
    name = f"{base.anatomy.path('word')}.weight"
    with torch.inference_mode(False), torch.enable_grad():
        learning = base.with_params({name: base.params[name].clone().requires_grad_()})
    assert learning.embeddings.word.dtype == torch.float32
    rows, batch = stack_rows(base, [fold(base, {})]), packed(base, texts_of([7]), [0])
    got, wanted = (encode(each, rows, batch)[:7].float() for each in (learning, base))
    torch.testing.assert_close(got, wanted, rtol=TOLERANCE[torch.bfloat16], atol=TOLERANCE[torch.bfloat16])
