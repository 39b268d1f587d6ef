"""bfloat16 is used where it is fast; it and int8 only while they agree with float32."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bases import FAMILIES, tiny_base
from onebert_encoder.base.base import load_base
from onebert_encoder.compute.linear import make_linear
from onebert_encoder.maths.precision import fast_dtype, relative_error, trusted
from stages import needs_kernels


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_trusted_where_it_only_rounds(family: str) -> None:
    base = load_base(str(tiny_base(family)), dtype=torch.bfloat16)
    assert trusted(base) is base
    # The results differ by more than rounding in float32 would explain: it really computes in bfloat16.
    assert relative_error(base, base.in_dtype(torch.float32)) > 1e-4


@needs_kernels
def test_int8_is_trusted_on_the_default_base_where_it_rounds_as_measured() -> None:
    base = load_base(dtype=torch.int8)
    assert trusted(base) is base
    # 0.19 here; coarser than bfloat16's 0.026 because a token's largest numbers are many times its usual ones.
    assert 0.05 < relative_error(base, base.in_dtype(torch.float32)) < 0.3


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.int8, marks=needs_kernels)])
def test_float32_takes_over_where_something_else_is_computed(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    base = load_base(str(tiny_base("bert")), dtype=dtype)
    wrong = 10 * torch.randn(32, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    base.layers[1] = replace(base.layers[1], W={**base.layers[1].W, "m1": make_linear(lambda: wrong)})
    with caplog.at_level(logging.WARNING):
        settled = trusted(base)
    assert settled.dtype == torch.float32
    assert "strays from float32" in caplog.text


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the processor says it elsewhere")
def test_the_fast_dtype_is_one_that_the_processor_says_it_multiplies() -> None:
    words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    says = not words.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})
    assert fast_dtype("cpu") == (torch.bfloat16 if says else torch.float32)
