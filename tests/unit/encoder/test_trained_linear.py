"""Products on our own tiles, with packed and with trained weights, against float64; a step of full fine-tuning."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bases import tiny_base
from batches import logits_of, packed
from lengths import examples
from onebert_encoder.base.base import load_base
from onebert_encoder.compute import trained
from onebert_encoder.compute.kernels.products import load_products
from onebert_encoder.compute.trained import TrainedLinear, TrainedTiles
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import stack_rows
from stages import anew, draw, needs_kernels

pytestmark = [needs_kernels, pytest.mark.usefixtures("two_threads")]


# Inputs of which four panels, what a thread takes at a time, are a whole block on matrix registers and a part of one.
INPUTS = {torch.float32: 1040, torch.bfloat16: 2080, torch.int8: 4160}
# Relative to the product's own size: of the rounding of its sums, of its result, and of its factors to 8 bits.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.int8: 0.02}


@pytest.fixture(autouse=True)
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a processor with AVX-512 that is not Intel's."""
    monkeypatch.setattr(trained, "mkl_is_held_back", lambda: True)
    with anew(trained.load_trained):
        yield


def tiles() -> TrainedTiles:
    return trained.load_trained("cpu", torch.float32)


def learned(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = TrainedLinear(tiles(), weight)(x)
    return (y.detach(), *torch.autograd.grad(y, (x, weight), grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("tokens", [1, 16, 33, 70, 300])
def test_a_large_weight_is_multiplied_whole_and_each_token_by_itself(dtype: torch.dtype, tokens: int) -> None:
    products, into = load_products("cpu", dtype), INPUTS[dtype]
    of_tokens = torch.bfloat16 if dtype == torch.int8 else dtype
    x, weight = draw(tokens, into, dtype=of_tokens), draw(200, into, dtype=torch.float32, seed=1).to(of_tokens)
    packed = products.pack(weight)
    got = products.multiply(x, packed)
    want = x.double() @ weight.double().T
    assert ((got.double() - want).norm(dim=1) / want.norm(dim=1)).max() < TOLERANCE[dtype]
    assert torch.equal(got[-1:], products.multiply(x[-1:], packed))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 150), st.integers(1, 130), st.integers(1, 100))
def test_products_and_gradients_of_any_shape(tokens: int, into: int, out: int) -> None:
    x, weight, grad = (draw(*shape, dtype=torch.float32) for shape in ((tokens, into), (out, into), (tokens, out)))
    exact = [tensor.double() for tensor in (x, weight, grad)]
    wanted = (exact[0] @ exact[1].T, exact[2] @ exact[1], exact[2].T @ exact[0])
    for got, want in zip(learned(x, weight, grad), wanted, strict=True):
        # Sums of up to 150 products of order 1 to 10, each rounded by 6e-8 of the sum so far.
        torch.testing.assert_close(got, want.float(), rtol=0, atol=1e-4)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    drawn = [draw(*shape, dtype=torch.float32) for shape in ((300, 200), (130, 200), (300, 130))]
    both = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        both.append(learned(*drawn))
    assert all(torch.equal(first, other) for first, other in zip(*both, strict=True))


def test_a_changed_base_has_the_gradient_of_pytorchs_products(monkeypatch: pytest.MonkeyPatch) -> None:
    base = load_base(str(tiny_base("bert")))
    texts = base.tokenizer.encode(["the parcel was late", "thanks", "a " * 30], 32)
    results = []
    for held_back in (True, False):
        monkeypatch.setattr(trained, "mkl_is_held_back", lambda held_back=held_back: held_back)
        trained.load_trained.cache_clear()
        leaves = {name: value.clone().requires_grad_() for name, value in base.params.items() if "layer" in name}
        view = base.with_params(leaves)
        assert isinstance(view.layers[0].W["m2"], TrainedLinear) == held_back
        head = {"head.weight": draw(2, base.config.hidden_size, dtype=torch.float32), "head.bias": torch.zeros(2)}
        rows = stack_rows(view, [fold(view, head, "mean")])
        logits = torch.stack(logits_of(view, rows, packed(view, texts, [0] * len(texts))))
        results.append([logits, *torch.autograd.grad(logits.square().sum(), list(leaves.values()), allow_unused=True)])
    for gradient, theirs in zip(*results, strict=True):
        assert (gradient is None) == (theirs is None)
        if gradient is not None:
            # Sums over some hundred tokens in another order, of gradients up to about 100.
            torch.testing.assert_close(gradient, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("vendor", "flags", "left_out"),
    [
        ("AuthenticAMD", "sse2 avx avx2 fma avx512f avx512bw avx512_bf16", True),  # Zen 4
        ("AuthenticAMD", "sse2 avx avx2 fma bmi2", False),  # Zen 3
        ("GenuineIntel", "sse2 avx avx2 fma avx512f avx512bw", False),
    ],
)
def test_mkl_leaves_out_avx512_of_other_vendors_alone(vendor: str, flags: str, left_out: bool) -> None:
    cpuinfo = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: of a test\nflags\t\t: {flags}\n"
    assert trained.leaves_out(cpuinfo) == left_out


def test_where_mkl_is_not_held_back_it_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "mkl_is_held_back", lambda: False)
    trained.load_trained.cache_clear()
    assert trained.load_trained("cpu", torch.float32) is None
