"""The Triton programs that pool and classify, against sums in float64, on a GPU or in the interpreter."""

import logging
import sys
from functools import partial

import numpy as np
import pytest
import torch

import stages
from bases import Reference, as_read, far_task, loaded, tiny_base
from batches import heads_of, packed
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.gpu_heads import GpuHeads, load_heads
from onebert_encoder.maths.heads import classify
from onebert_encoder.maths.rows import Head, stack_rows
from onebert_encoder.text.tokens import Tokens
from stages import DEVICE, anew

pytest.importorskip("triton", reason="Triton exists for Linux alone")

pytestmark = pytest.mark.gpu

draw = partial(stages.draw, device=DEVICE)


def head_of(labels: int, width: int, seed: int, pooling: str = "mean") -> Head:
    weight, bias = (draw(*shape, dtype=torch.float32, seed=seed) for shape in ((labels, width), (labels,)))
    return Head(pooling, (), weight, bias)


def pooled_by(heads: list[Head], first: np.ndarray, lengths: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    return GpuHeads(heads_of(heads), first, lengths, x.device).pool(x)


def logits_by(heads: list[Head], pooled: torch.Tensor) -> tuple[torch.Tensor, ...]:
    ones = np.ones(len(heads), dtype=np.int64)
    flat = GpuHeads(heads_of(heads), ones, ones, pooled.device).classify(pooled)
    return torch.split(flat, [len(head.bias) for head in heads])


def test_a_sequence_has_the_same_bits_alone_and_among_others() -> None:
    x, heads = draw(64, 48, dtype=torch.bfloat16), [head_of(n, 48, n) for n in (2, 30, 5)]
    first, lengths = np.array([40, 0, 33]), np.array([20, 33, 7])
    pooled = pooled_by(heads, first, lengths, x)
    among = logits_by(heads, pooled)
    for i in range(3):
        alone = pooled_by([heads[i]], first[[i]], lengths[[i]], x)
        assert torch.equal(alone[0], pooled[i])
        assert torch.equal(logits_by([heads[i]], alone)[0], among[i])


def test_heads_of_every_kind_in_one_batch_equal_the_plain_models() -> None:
    """Heads that pool or read every token, with and without tanh layers, one with a matrix that is not contiguous."""
    base = loaded(device=DEVICE)
    rows, references = [fold(base, {})], []
    for seed, pooling in enumerate((*base.spec.poolings, "none", "mean")):
        row, tensors = far_task(base, "bitfit", pooling, labels=2 + seed, seed=seed)
        references.append(Reference(tiny_base("bert"), tensors, pooling))
        rows.append(row)
    texts = [
        as_read(Tokens(list(range(5, 5 + n)), [0] * n), reference.pooling)
        for n, reference in zip((3, 40, 17, 1, 33, 8), references, strict=True)
    ]
    batch = packed(base, texts, range(1, len(rows)))
    heads_of_rows = [rows[row].head for row in batch.rows]
    heads = [head for head in heads_of_rows if head]
    last = heads[-1]
    for variant in (heads, [*heads[:-1], Head(last.pooling, last.dense, last.weight.T.contiguous().T, last.bias)]):
        with torch.inference_mode():
            x = encode(base, stack_rows(base, rows), batch)
            logits = classify(heads_of(variant), batch, x, base.config.eps, GpuHeads).split()
        for got, reference, text in zip(logits, references, texts, strict=True):
            want = reference.logits(text.input_ids, text.type_ids, text.second)
            torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-4)


def test_programs_that_agree_are_used_and_others_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = torch.device(DEVICE)
    with anew(load_heads):
        assert load_heads(device) is not None

    def wrong(self: GpuHeads, pooled: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(right(self, pooled))

    right = GpuHeads.classify

    def broken(self: GpuHeads, pooled: torch.Tensor) -> list[torch.Tensor]:
        raise RuntimeError("out of shared memory")

    messages = []
    for method in (wrong, broken):
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING), anew(load_heads):
            patch.setattr(GpuHeads, "classify", method)
            assert load_heads(device) is None
        messages.append(caplog.messages[-1])
    assert messages == [
        "the GPU's programs for heads give wrong numbers, so plain PyTorch is used",
        "the GPU's programs for heads do not run (RuntimeError), so plain PyTorch is used",
    ]
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "onebert_encoder.compute.kernels.gpu.head_programs", raising=False)
    monkeypatch.delattr("onebert_encoder.compute.kernels.gpu.head_programs", raising=False)
    with anew(load_heads):
        assert load_heads(device) is None
