"""The Triton kernels against the plain ones: on a GPU where there is one, else in Triton's interpreter; and compiled.

The interpreter runs the programs on the CPU, one after the other, so the shapes here are small. It has no bfloat16 in
matrix products, so there float16 stands for the dtypes of 16 bits in attention.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import stages
from bases import Reference, far_task, loaded, random_texts, tiny_base
from batches import heads_of, packed
from onebert_encoder.compute.kernels.check import matches_plain
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.compute.kernels.gpu.load import Shape, load_gpu
from onebert_encoder.compute.kernels.plain import Gain, PlainKernels
from onebert_encoder.layout.stage import Stage, stage_of
from onebert_encoder.maths.encode import passes_of, run_passes
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.heads import classify
from onebert_encoder.maths.rows import stack_rows
from stages import DEVICE, HALF, anew

pytest.importorskip("triton", reason="Triton exists for Linux alone")

pytestmark = pytest.mark.gpu

draw = partial(stages.draw, device=DEVICE)

PLAIN = PlainKernels(F.gelu)
# Tolerances for numbers of order 1 to 4 and gains up to 4. float32: sums of some hundred roundings of 6e-8. In 16 bits
# both kernels round their results, and the plain ones intermediate results, too; bfloat16 keeps 8 bits, float16 11.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.1}


@cache
def fast() -> GpuKernels:
    return GpuKernels()


def assert_close(got: Tensor, want: Tensor) -> None:
    tolerance = TOLERANCE[want.dtype]
    torch.testing.assert_close(got.float(), want.float(), rtol=tolerance, atol=tolerance)


def stage(lengths: list[int], rows: list[int], filling: int, dtype: torch.dtype) -> Stage:
    return stage_of(lengths, rows, filling, dtype, torch.device(DEVICE))


@contextmanager
def unwritten_memory_is_nan() -> Iterator[None]:
    """Without it what nobody writes is often zero by chance."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_attention(dtype: torch.dtype) -> None:
    """Blocks hold 32 or 64 tokens: lengths at their edges and between; heads that fill no power of two."""
    lengths, heads, filling, h = [65, 3, 31, 32, 33], 3, 5, 3 * 24
    at = stage(lengths, [i % 3 for i in range(len(lengths))], filling, dtype)
    qkv = draw(sum(lengths) + filling, 3 * h, dtype=dtype)
    b_q = draw(3, 2 * h, dtype=dtype, seed=1)[:, h:]
    with unwritten_memory_is_nan():
        context = fast().attend(qkv.clone(), b_q, at, heads)
    assert_close(context, PLAIN.attend(qkv.clone(), b_q, at, heads))
    assert not context[sum(lengths) :].any()


# Triton's interpreter computes with numpy, which warns of the NaN and infinity put in on purpose.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_attention_never_reads_the_filling_or_a_neighbor() -> None:
    at = stage([6, 40, 3], [0, 1, 0], 15, torch.float32)
    qkv = draw(64, 3 * 32, dtype=torch.float32)
    qkv[7], qkv[49:] = float("nan"), float("nan")
    context = fast().attend(qkv, torch.zeros(2, 32, device=DEVICE), at, 2)
    assert context[6:46].isnan().all()
    assert torch.isfinite(context[:6]).all()
    assert torch.isfinite(context[46:49]).all()
    assert not context[49:].any()


def test_the_activation_is_gelu() -> None:
    """The error function is exact to 1.5e-7, and counts up to half of an input; the rest is rounding in float32."""
    x = torch.linspace(-12, 12, 3000, device=DEVICE)[None]
    got = fast().add_activate(x.clone(), torch.zeros_like(x), stage([1], [0], 0, torch.float32))
    torch.testing.assert_close(got.double(), F.gelu(x.double()), rtol=1e-6, atol=5e-7)


def test_rows_that_lie_beyond_what_32_bits_can_count() -> None:
    # The table takes little memory: only three of its rows are ever touched.
    table = torch.empty(2**31 + 64, dtype=torch.bfloat16, device=DEVICE).as_strided((3, 32), (2**30, 1))
    near = draw(3, 32, dtype=torch.bfloat16)
    for row in range(3):
        table[row] = near[row]
    at, of_token = stage([5, 3], [2, 1], 0, torch.bfloat16), torch.tensor([2, 0, 1, 2] * 2, device=DEVICE)
    x = draw(8, 32, dtype=torch.bfloat16, seed=1)
    qkv = draw(8, 96, dtype=HALF, seed=2)
    for gathered, want in (
        (fast().add_activate(x.clone(), table, at), fast().add_activate(x.clone(), near, at)),
        (
            fast().add_norm(x.clone(), x, table, at, Gain(near[0], table, of_token), 1e-5),
            fast().add_norm(x.clone(), x, near, at, Gain(near[0], near, of_token), 1e-5),
        ),
        (
            fast().attend(qkv, table.view(HALF), at, 2),
            fast().attend(qkv, near.view(HALF), at, 2),
        ),
    ):
        assert torch.equal(gathered, want)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_a_sequence_has_the_same_bits_alone_and_among_others(dtype: torch.dtype) -> None:
    among, alone = stage([3, 33, 70, 5], [1, 0, 2, 1], 3, dtype), stage([70], [2], 2, dtype)
    qkv = draw(114, 3 * 48, dtype=dtype)
    b = draw(3, 48, dtype=dtype, seed=1)
    mine = torch.cat([qkv[36:106], qkv[:2]])
    assert torch.equal(fast().attend(qkv, b, among, 3)[36:106], fast().attend(mine, b, alone, 3)[:70])
    y, own_y, gain = qkv[:, :48].contiguous(), mine[:, :48].contiguous(), Gain(b[0], b, None)
    normed = fast().add_norm(y.clone(), y, b, among, gain, 1e-12)
    assert torch.equal(normed[36:106], fast().add_norm(own_y.clone(), own_y, b, alone, gain, 1e-12)[:70])


# ELECTRA's embeddings are narrower than its layers.
@pytest.mark.parametrize("family", ["bert", "electra"])
@pytest.mark.slow
def test_every_method_in_one_mixed_batch_equals_the_plain_model(family: str) -> None:
    base = loaded(family, DEVICE)
    rows, references = [fold(base, {})], []
    for seed, kind in enumerate(("bitfit", "gains", "lora", "scale", "everything", "adapter")):
        row, tensors = far_task(base, kind, labels=2 + seed, seed=seed)
        references.append(Reference(tiny_base(family), tensors, "mean"))
        rows.append(row)
    stacked, texts = stack_rows(base, rows), random_texts((3, 40, 17, 1, 33, 21), seed=7)
    batch = packed(base, texts, [1, 2, 3, 4, 5, 6])
    with torch.inference_mode():
        x = run_passes(passes_of(base, stacked, batch, fast()), batch)
        logits = classify(heads_of([row.head for row in rows[1:]]), batch, x, base.config.eps).split()
    for got, reference, text in zip(logits, references, texts, strict=True):
        want = reference.logits(text.input_ids, text.type_ids)
        # As in tests/integration/exactness/test_exactness.py: rounding gives 1e-6, a wrong term about 1.
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-4)


def test_kernels_that_agree_are_used_and_kernels_that_do_not_are_seen() -> None:
    class Forgetful(PlainKernels):
        def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
            return super().add_norm(y, x, torch.zeros_like(b), stage, gain, eps)

    device = torch.device(DEVICE)
    assert load_gpu(Shape(device, torch.float32, 384, 12, 1536)) is not None
    assert matches_plain(PLAIN, device, torch.bfloat16)
    assert not matches_plain(Forgetful(F.gelu), device, torch.bfloat16)


def test_without_triton_plain_kernels_take_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "onebert_encoder.compute.kernels.gpu.programs", raising=False)
    monkeypatch.delattr("onebert_encoder.compute.kernels.gpu.programs", raising=False)
    with anew(load_gpu), caplog.at_level(logging.WARNING):
        kernels = [load_gpu(Shape(torch.device(DEVICE), torch.float32, 48, 2, 96)) for _ in range(2)]
    assert kernels == [None, None]
    assert [record.message for record in caplog.records] == ["Triton is not installed, so plain PyTorch is used"]


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU's own tests compile what they run")
@pytest.mark.slow
def test_the_programs_compile_for_gpus(tmp_path: Path) -> None:
    # The interpreter accepts more than the compiler, so programs are also compiled, in a process without interpreter.
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    for_one = ["attend", "add_norm", "add_norm", "add_activate", "shrink", "expand", "pool", "classify"]
    assert done.stdout.split() == ["add_activate", *for_one * 2] * 2


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from onebert_encoder.compute.kernels.gpu.branches import expand, shrink
from onebert_encoder.compute.kernels.gpu.head_programs import classify, pool
from onebert_encoder.compute.kernels.gpu.programs import add_activate, add_norm, attend

OTHERS = {
    **dict.fromkeys(("row_of_token", "gain_of_token", "tiles", "spans", "readers"), "*i64"),
    **dict.fromkeys(("pooled", "logits"), "*fp32"),
    **dict.fromkeys(("b_stride", "gain_stride"), "i32"),
    **dict.fromkeys(("num_sequences", "num_tokens", "low_blocks"), "i32"),
    **{"edges": "*i32", "scale": "fp32", "eps": "fp32"},
}

def build(program, number, arch, constants, num_warps=4):
    names = program.arg_names
    signature = {n: "constexpr" if n in constants else OTHERS.get(n, number) for n in names}
    places = {(names.index(name),): value for name, value in constants.items()}
    target = GPUTarget("cuda", arch, 32)
    compiled = triton.compile(ASTSource(program, signature, places), target=target, options={"num_warps": num_warps})
    assert compiled.asm["cubin"]
    print(program.__name__)

for arch in (80, 90):
    build(add_activate, "*bf16", arch, {"WIDTH": 16384, "WIDTH_BLOCK": 16384}, 16)
    narrow = {"WIDTH": 768, "WIDTH_BLOCK": 1024}
    for number, block in (("*bf16", 64), ("*fp32", 32)):
        heads = {"H": 768, "D": 64, "D_BLOCK": 64, "T_BLOCK": block}
        build(attend, number, arch, heads)
        build(add_norm, number, arch, narrow, 1)
        build(add_norm, number, arch, narrow | {"gain_of_token": None})
        build(add_activate, number, arch, {"WIDTH": 3072, "WIDTH_BLOCK": 4096})
        build(shrink, number, arch, {"WIDTH": 768, "K_BLOCK": 64, "R_BLOCK": 64})
        build(expand, number, arch, {"WIDTH": 2304, "C_BLOCK": 128})
        build(pool, number, arch, {"WIDTH": 768, "T_BLOCK": 16, "C_BLOCK": 128})
        build(classify, number, arch, narrow | {"L_BLOCK": 4})
"""
