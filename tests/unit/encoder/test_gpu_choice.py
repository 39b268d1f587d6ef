"""Among several ways to compute the same a GPU takes the fastest that is right; here clocks are made up."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import stages
from onebert_encoder.compute.kernels.gpu import choice as gpu_choice
from onebert_encoder.compute.kernels.gpu.attention import VarlenAttention
from onebert_encoder.compute.kernels.gpu.choice import Shape, choose, choose_ways
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.compute.kernels.plain import PlainKernels
from onebert_encoder.layout.stage import stage_of
from stages import DEVICE, HALF, anew

pytest.importorskip("triton", reason="Triton exists for Linux alone")

pytestmark = pytest.mark.gpu

draw = partial(stages.draw, device=DEVICE)

Way = Callable[[], Tensor]


def way(value: float, milliseconds: float) -> Callable[[], Way]:
    def compute() -> Tensor:
        return torch.full((3,), value)

    compute.milliseconds = milliseconds  # type: ignore[attr-defined]
    return lambda: compute


def broken() -> Way:
    raise RuntimeError("no kernel image is available")


def chosen(**ways: Callable[[], Way]) -> Any:
    return choose(ways, 0.1, lambda one: one.milliseconds)  # type: ignore[attr-defined]


def test_the_fastest_right_way_is_taken_and_all_are_told() -> None:
    found = chosen(first=way(1, 2.0), quick=way(1.05, 1.0), wrong=way(2, 0.1), nan=way(float("nan"), 0.1), none=broken)
    assert found.name == "quick"
    assert str(found) == (
        "quick (first 2 ms, quick 1 ms, wrong gives other numbers, nan gives other numbers, "
        "none does not run (RuntimeError))"
    )


def test_the_first_way_stays_where_no_other_is_clearly_faster() -> None:
    assert chosen(first=way(1, 1.0), same=way(1, 0.99)).name == "first"


def test_a_first_way_that_fails_is_no_choice() -> None:
    with pytest.raises(RuntimeError):
        chosen(first=broken, other=way(1, 1.0))


class Clock:
    """Says that ways take a millisecond each, but some, in the order in which they are measured."""

    def __init__(self, *milliseconds: float) -> None:
        self._left = list(milliseconds)

    def __call__(self, one: Way) -> float:
        one()
        return self._left.pop(0)


def packed_attention(q: Tensor, k: Tensor, v: Tensor, edges: Tensor, _: Tensor, longest: int, __: int) -> Tensor:
    """What PyTorch's `varlen_attn` gives, which has no code for CPUs; memory behind the last sequence is arbitrary."""
    out = torch.full_like(q, float("nan"))
    for start, stop in zip(edges.tolist(), edges.tolist()[1:], strict=False):
        assert stop - start <= longest
        own = [one[start:stop].transpose(0, 1)[None] for one in (q, k, v)]
        out[start:stop] = F.scaled_dot_product_attention(*own)[0].transpose(0, 1)
    return out


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        from torch.nn.attention import varlen as module

        monkeypatch.setattr(module, "varlen_attn", packed_attention)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_packed_attention_is_the_plain_one(varlen: None, dtype: torch.dtype) -> None:
    if DEVICE == "cuda" and dtype == torch.float32:
        pytest.skip("FlashAttention takes 16 bits")
    lengths, filling, h = [5, 70, 1, 33], 7, 48
    at = stage_of(lengths, [2, 0, 1, 2], filling, dtype, torch.device(DEVICE))
    qkv = draw(sum(lengths) + filling, 3 * h, dtype=dtype)
    b_q = draw(3, 2 * h, dtype=dtype, seed=1)[:, h:]
    got = VarlenAttention(GpuKernels().programs)(qkv.clone(), b_q, at, 3)
    want = PlainKernels(F.gelu).attend(qkv.clone(), b_q, at, 3)
    tolerance = {torch.float32: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(got[:109], want[:109], rtol=tolerance, atol=tolerance)


def shape(dtype: torch.dtype) -> Shape:
    return Shape(torch.device(DEVICE), dtype, 32, 2, 64)


def test_what_is_faster_here_is_computed_so_and_shown(varlen: None, caplog: pytest.LogCaptureFixture) -> None:
    kernels = GpuKernels()
    assert kernels.description == "gpu (triton attention)"
    assert kernels.batch_invariant
    clock = Clock(2, 1)
    with caplog.at_level(logging.INFO, "onebert.kernels"):
        choose_ways(kernels, shape(HALF), 0.1, clock, compared=(3, 20))
    assert kernels.description == "gpu (varlen attention)"
    assert not kernels.batch_invariant
    assert caplog.messages == ["attention: varlen (triton 2 ms, varlen 1 ms)"]


def test_a_device_without_packed_attention_keeps_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwritten(*_: Any) -> Any:
        raise NotImplementedError

    from torch.nn.attention import varlen as module

    monkeypatch.setattr(module, "varlen_attn", unwritten)
    kernels = GpuKernels()
    choose_ways(kernels, shape(torch.float32), 1e-4, Clock(2), compared=(3, 20))
    assert kernels.description == "gpu (triton attention)"


def test_texts_that_shall_have_the_same_bits_are_computed_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Shape] = []
    monkeypatch.setattr(gpu_choice, "choose_ways", lambda _, at, *__: asked.append(at))
    monkeypatch.setattr(gpu_choice, "_is_right", lambda *_: True)
    on_gpu = Shape(torch.device("cuda"), torch.bfloat16, 32, 2, 64)
    for invariant in (True, False):
        with anew(gpu_choice.load_gpu):
            assert gpu_choice.load_gpu(on_gpu, invariant) is not None
        assert asked == ([] if invariant else [on_gpu])
