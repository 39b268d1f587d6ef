"""The C++ kernels against the plain ones in float32, on shapes that no base has: results, dropout, all gradients."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lengths import examples
from onebert_encoder.compute.kernels import native
from onebert_encoder.compute.kernels.plain import Gain, PlainKernels
from onebert_encoder.compute.scores import FILLING, ByDistance, Rotary
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout
from onebert_encoder.layout.stage import Stage, stage_of
from stages import draw, needs_kernels

pytestmark = [needs_kernels, pytest.mark.usefixtures("two_threads")]

# Absolute and relative. float32: sums of up to some hundred numbers of order 1, each rounded by 6e-8 of it. bfloat16:
# inputs, results and what is kept for the way back are rounded to 8 bits (2e-3 of a number), sums are float32.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
DTYPES = list(TOLERANCE)

Layer = Callable[[PlainKernels, Stage, list[Tensor]], Tensor]

sequences = st.lists(st.tuples(st.integers(1, 70), st.integers(0, 3)), min_size=1, max_size=9)


def fast(dtype: torch.dtype, dropout: Dropout = NO_DROPOUT) -> PlainKernels:
    return native.load_native("cpu", dtype)(dropout)


def dropout_of(drop: float) -> Dropout:
    return Dropout(drop, drop, [torch.Generator().manual_seed(row) for row in range(4)])


def packed(drawn: list[tuple[int, int]], filling: int, dtype: torch.dtype) -> Stage:
    """A stage as `pack` makes it: sequences by length class and row."""
    order = sorted(drawn, key=lambda length: (max(length[0] - 1, 15).bit_length(), length[1]))
    return stage_of([length for length, _ in order], [row for _, row in order], filling, dtype)


def assert_learns_alike(
    layer: Layer, stage: Stage, shapes: list[tuple[int, ...]], dtype: torch.dtype, drop: float
) -> None:
    """Runs both kernels forward and backward from the same numbers, and compares outputs and gradients."""
    results = []
    filled = len(stage.row_of_token) - stage.filling
    for kernels, kind in (
        (fast(dtype, dropout_of(drop)), dtype),
        (PlainKernels(F.gelu, dropout_of(drop)), torch.float32),
    ):
        leaves = [draw(*shape, dtype=dtype, seed=i).to(kind).requires_grad_() for i, shape in enumerate(shapes)]
        # Kernels may write into their first argument, which is never a leaf.
        out = layer(kernels, replace(stage, dtype=kind), [leaves[0] * 1, *leaves[1:]])[:filled]
        weights = draw(*out.shape, dtype=torch.float32, seed=9)
        grads = torch.autograd.grad((out.float() * weights).sum(), leaves, allow_unused=True, materialize_grads=True)
        results.append([out, *grads])
    for got, want in zip(*results, strict=True):
        assert got.dtype == dtype
        tolerance = TOLERANCE[dtype] * max(1, want.abs().max().item())
        torch.testing.assert_close(got.float(), want, rtol=TOLERANCE[dtype], atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=examples(40), deadline=None)
@given(
    sequences,
    st.integers(1, 3),
    st.sampled_from([1, 5, 16, 24, 32, 48, 64, 80]),
    st.integers(0, 7),
    st.sampled_from([0, 0.3]),
)
def test_attention(
    dtype: torch.dtype, drawn: list[tuple[int, int]], heads: int, d: int, filling: int, drop: float
) -> None:
    stage, h = packed(drawn, filling, dtype), heads * d

    def layer(kernels: PlainKernels, stage: Stage, leaves: list[Tensor]) -> Tensor:
        qkv, table = leaves
        return kernels.attend(qkv, table[:, 1], stage, heads)

    assert_learns_alike(layer, stage, [(len(stage.row_of_token), 3 * h), (4, 2, h)], dtype, drop)


@pytest.mark.parametrize("drop", [0, 0.1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_with_numbers_by_distance(dtype: torch.dtype, drop: float) -> None:
    """Rows with a table of their own beside others; freed memory is written before the backward pass."""
    heads, d, most = 3, 8, 50
    stage, width = packed([(5, 0), (40, 1), (33, 2)], 3, dtype), 2 * most - 1 + FILLING

    def attended(kernels: PlainKernels, stage: Stage, qkv: Tensor, table: Tensor) -> Tensor:
        shared, other = (draw(heads, width, dtype=torch.float32, seed=seed) for seed in range(2))
        options: list[Mapping[str, Tensor]] = [{}, {"distances": other}, {}, {}]
        return kernels.attend(qkv, table, stage, heads, ByDistance(shared), options)

    def layer(kernels: PlainKernels, stage: Stage, leaves: list[Tensor]) -> Tensor:
        context = attended(kernels, stage, *leaves)
        freed = [torch.full((heads, width), 1e6) for _ in range(9)]
        assert freed
        return context

    assert_learns_alike(layer, stage, [(len(stage.row_of_token), 3 * heads * d), (4, heads * d)], dtype, drop)


@pytest.mark.parametrize("window", [0, 1, 7, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_turned_queries_and_keys_within_a_window(dtype: torch.dtype, window: int) -> None:
    heads, d = 3, 8
    stage, scores = packed([(5, 0), (140, 1), (33, 2), (1, 3)], 3, dtype), Rotary(1e4, window, d, 200)

    def layer(kernels: PlainKernels, stage: Stage, leaves: list[Tensor]) -> Tensor:
        qkv, table = leaves
        return kernels.attend(qkv, table, stage, heads, scores)

    assert_learns_alike(layer, stage, [(len(stage.row_of_token), 3 * heads * d), (4, 2 * heads * d)], dtype, 0.1)


# Without dropout the plain kernels compute so long a text by PyTorch's fused attention.
@pytest.mark.parametrize("drop", [0, 0.1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_a_long_text(dtype: torch.dtype, drop: float) -> None:
    assert_learns_alike(
        lambda kernels, stage, leaves: kernels.attend(leaves[0], leaves[1], stage, 2),
        packed([(600, 0), (3, 1)], 5, dtype),
        [(608, 192), (2, 64)],
        dtype,
        drop,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("own_gains", [False, True])
@pytest.mark.parametrize("width", [1, 16, 100])
def test_add_norm(dtype: torch.dtype, own_gains: bool, width: int) -> None:
    stage = packed([(5, 2), (9, 0)], 0, dtype)

    def layer(kernels: PlainKernels, stage: Stage, leaves: list[Tensor]) -> Tensor:
        y, x, biases, gains, shared = leaves
        of_token = torch.arange(14) % 3 if own_gains else None
        # Tables are slices of larger ones, like those of one layer among all.
        return kernels.add_norm(y, x, biases[:, 1], stage, Gain(shared, gains[:, 1], of_token), 1e-2)

    shapes = [(14, width), (14, width), (3, 2, width), (3, 2, width), (width,)]
    assert_learns_alike(layer, stage, shapes, dtype, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 16, 1536])
def test_add_activate(dtype: torch.dtype, width: int) -> None:
    stage = packed([(5, 2), (9, 0)], 2, dtype)

    def layer(kernels: PlainKernels, stage: Stage, leaves: list[Tensor]) -> Tensor:
        return kernels.add_activate(3 * leaves[0], leaves[1][:, 1], stage)

    assert_learns_alike(layer, stage, [(16, width), (3, 2, width)], dtype, 0)


def test_gelu_and_its_slope_are_those_of_the_normal_distribution_everywhere() -> None:
    x = torch.cat([torch.linspace(-12, 12, 40_001), torch.tensor([0.0, -1e30, 1e30, math.inf, math.nan])])
    leaf = x.clone().requires_grad_()
    got = fast(torch.float32).add_activate(leaf[None], torch.zeros(1, len(x)), packed([(1, 0)], 0, torch.float32))[0]
    exact = x.double() * torch.special.ndtr(x.double())
    # The polynomial's error is below 5e-7; beyond 5 the rounding of the value itself counts, up to 12 * 6e-8 * a few.
    torch.testing.assert_close(got.double(), exact, rtol=5e-7, atol=2e-6, equal_nan=True)
    twin = x[:40_001].double().requires_grad_()
    F.gelu(twin).sum().backward()
    (grad,) = torch.autograd.grad(got[:40_001].sum(), leaf)
    # The polynomial's error is below 1e-7, that of the density below 1e-6 of itself.
    torch.testing.assert_close(grad[:40_001].double(), twin.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 100])
def test_dropout_of_activations(dtype: torch.dtype, width: int) -> None:
    stage = packed([(5, 2), (40, 0), (9, 0)], 2, dtype)
    assert_learns_alike(lambda kernels, stage, leaves: kernels.drop(leaves[0], stage), stage, [(56, width)], dtype, 0.3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so_and_stays_in_its_sequence(dtype: torch.dtype, poison: float) -> None:
    stage = packed([(6, 0), (9, 1), (12, 2)], 3, dtype)
    qkv, b = draw(30, 96, dtype=dtype), draw(3, 32, dtype=dtype)
    qkv[7] = poison
    qkv.requires_grad_()
    b.requires_grad_()
    kernels = fast(dtype, dropout_of(0.1))
    context = kernels.attend(qkv, b, stage, 2)
    out = kernels.add_norm(context * 1, qkv[:, :32], b, stage, Gain(torch.ones(32, dtype=dtype), b, None), 1e-12)
    grads = torch.autograd.grad(kernels.add_activate(out * 1, b, stage)[:27].sum(), (qkv, b))
    others = torch.tensor([*range(6), *range(15, 27)])
    for each in (context, out):
        assert torch.isfinite(each[others]).all()
        assert not torch.isfinite(each[6:15]).any()
    assert torch.isfinite(grads[0][others]).all()
    assert torch.isfinite(grads[1][[0, 2]]).all()
    assert not torch.isfinite(grads[1][1]).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_threads_gives_the_same_bits(dtype: torch.dtype) -> None:
    stage = packed([(length, length % 3) for length in range(1, 60)], 4, dtype)
    tokens = len(stage.row_of_token)

    def learned(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        kernels = fast(dtype, dropout_of(0.2))
        qkv, b, gain = (draw(*shape, dtype=dtype).requires_grad_() for shape in ((tokens, 192), (3, 64), (64,)))
        y = kernels.drop(kernels.attend(qkv, b, stage, 4), stage)
        out = kernels.add_activate(kernels.add_norm(y, qkv[:, :64], b, stage, Gain(gain, b, None), 1e-12), b, stage)
        return [out, *torch.autograd.grad(out.float().square().sum(), (qkv, b, gain))]

    for first, other in zip(learned(1), learned(2), strict=True):
        assert torch.equal(first, other)
