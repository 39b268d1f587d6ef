"""Products in 8-bit integers against the float product, and every reason not to offer them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bases import tiny_base
from lengths import examples
from onebert_encoder.base.base import load_base
from onebert_encoder.compute import linear
from onebert_encoder.compute.linear import Int8Linear
from onebert_store.errors import InvalidSettings
from stages import draw, needs_kernels

pytestmark = needs_kernels


def step(x: Tensor) -> Tensor:
    """[tokens, 1], the step between the 256 numbers that a token is rounded to: its range, zero included, over 255."""
    return (x.amax(1, keepdim=True).clamp(min=0) - x.amin(1, keepdim=True).clamp(max=0)) / 255


def assert_within_rounding(x: Tensor, weight: Tensor, got: Tensor) -> None:
    """No error of the product is larger than the rounding of its factors explains.

    An entry of x is off by half a step, one of W by half of 1/127 of its row's largest. bfloat16 rounds twice, to a
    relative 2**-9: the result, and before it the sum over q - 128, at most 128 steps of x for each entry of W.
    """
    x, steps, of_weight = x.double(), step(x.double()), weight.double().abs().amax(1) / 127
    want, span = x @ weight.double().T, weight.double().abs().sum(1)
    rounded = 0.5 * steps * span + 0.5 * of_weight * (x.abs() + steps).sum(1, keepdim=True)
    bound = rounded + 2**-9 * (128 * steps * span + rounded) * 1.01 + 2**-8 * want.abs() + 1e-20
    assert ((got.double() - want).abs() <= bound).all()


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 40), st.sampled_from([1, 8, 24, 100, 384]), st.sampled_from([1, 16, 40, 100]), st.integers(-3, 3))
def test_the_product_of_any_shape_is_as_near_as_its_rounded_factors(
    tokens: int, into: int, out: int, center: int
) -> None:
    x, weight = draw(tokens, into, dtype=torch.float32) + center, draw(out, into, dtype=torch.float32, seed=1)
    x = x.to(torch.bfloat16)
    assert_within_rounding(x, weight, Int8Linear(weight)(x))


def test_the_largest_sums_of_a_deep_product_are_exact() -> None:
    """Every factor is 255 or 127, so all sums of neighbors are the largest there are."""
    signs = torch.tensor([1.0, -1.0, 1.0]).repeat(22)[:64, None].expand(-1, 4096).clone()
    signs[2::3, ::2] = -1
    x = torch.full((9, 4096), 255.0, dtype=torch.bfloat16)
    assert torch.equal(Int8Linear(signs)(x), (x.float() @ signs.T).to(torch.bfloat16))


@pytest.mark.parametrize(
    "row",
    [[0.0] * 40, [3.0] * 40, [-3.0] * 40, [1e-20, -2e-20] * 20, [1e30, -1e30] * 20, [0.01, -0.02] * 19 + [500.0, 0.0]],
    ids=["zeros", "constant", "negative", "tiny", "huge", "outlier"],
)
def test_a_row_keeps_its_zeros_and_is_off_by_half_a_step(row: list[float]) -> None:
    x = torch.tensor([row, row]).to(torch.bfloat16)
    # A weight of ones in one place each reads the token's own numbers back: its 127 / 127 is exact.
    back = Int8Linear(torch.eye(40))(x).double()
    rounded = 0.501 * step(x.double()) + 2**-9 * x.double().abs()
    assert ((back - x.double()).abs() <= rounded).all()
    assert (back[x == 0].abs() <= 1e-5 * step(x.double()).max()).all()
    weight = draw(24, 40, dtype=torch.float32)
    assert_within_rounding(x, weight, Int8Linear(weight)(x))


@pytest.mark.parametrize("place", [5, 97])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so_and_stays_in_its_token(poison: float, place: int) -> None:
    linear = Int8Linear(draw(40, 100, dtype=torch.float32))
    x = draw(20, 100, dtype=torch.bfloat16, seed=1)
    clean = linear(x)
    x[7, place] = poison
    got, others = linear(x), torch.arange(20) != 7
    assert not torch.isfinite(got[7]).any()
    assert torch.equal(got[others], clean[others])


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 1100), st.integers(0, 2**16))
def test_a_token_has_the_same_bits_alone_and_among_any_number(count: int, seed: int) -> None:
    linear, x = Int8Linear(draw(40, 96, dtype=torch.float32)), draw(count, 96, dtype=torch.bfloat16, seed=seed)
    chosen = seed % count
    assert torch.equal(linear(x)[chosen], linear(x[chosen : chosen + 1])[0])


def test_a_gradient_is_refused_and_not_lost() -> None:
    x = draw(4, 24, dtype=torch.bfloat16).requires_grad_()
    product = Int8Linear(draw(8, 24, dtype=torch.float32))
    with pytest.raises(RuntimeError, match="no gradient"):
        product(x)
    with torch.no_grad():
        product(x)


def test_a_base_in_int8_says_so_and_gives_others_back() -> None:
    base = load_base(str(tiny_base()), dtype=torch.int8)
    assert (base.dtype_name, base.dtype) == ("int8", torch.bfloat16)
    exact = base.in_dtype(torch.float32)
    assert exact.dtype_name == "float32"
    assert exact.in_dtype(torch.float32) is exact, "no second copy of the weights"
    # A base that is trained needs gradients, which products in 8-bit integers do not have.
    assert base.with_params({}).dtype_name == "bfloat16"


def refusal() -> str:
    with pytest.raises(InvalidSettings) as refused:
        load_base(str(tiny_base()), dtype=torch.int8)
    return refused.value.detail


def test_without_compiled_products_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "load_products", lambda *_: None)
    assert "need a C++ compiler" in refusal()


def test_elsewhere_than_on_a_cpu_it_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="on the CPU only"):
        Int8Linear(torch.empty(8, 24, device="meta"))
