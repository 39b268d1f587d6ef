"""Pooling and classifiers of a mixed batch on a GPU: one launch each, whatever the tasks and their labels."""

import logging
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.layout.upload import Array, upload
from onebert_encoder.maths.rows import Head

logger = logging.getLogger("onebert.kernels")

# One program of `pool` takes C_BLOCK columns, T_BLOCK tokens at a time; one of `classify` takes _LABELS labels.
_POOL = {"T_BLOCK": 16, "C_BLOCK": 128}
_LABELS = 4


class GpuHeads:
    """Pools and classifies with Triton programs, without gradients."""

    def __init__(self) -> None:
        from onebert_encoder.compute.kernels import gpu_head_programs  # noqa: PLC0415

        self._programs = gpu_head_programs

    def pool(self, first: Array, lengths: Array, x: Tensor, mean: Sequence[bool]) -> Tensor:
        """[sequences, h] float32: the mean over a sequence's tokens where asked, else its first token."""
        spans = upload({0: np.stack([first, np.where(mean, lengths, 1)], axis=1)}, x.device)[0]
        pooled = x.new_empty(len(first), x.shape[1], dtype=torch.float32)
        grid = (len(first), -(-x.shape[1] // _POOL["C_BLOCK"]))
        with torch.cuda.device_of(x):
            self._programs.pool[grid](x, spans, pooled, x.shape[1], **_POOL)
        return pooled

    def classify(self, heads: Sequence[Head], pooled: Tensor) -> list[Tensor]:
        """Logits [labels] of each sequence by its own head, whose matrices are contiguous."""
        counts = [len(head.bias) for head in heads]
        starts = np.cumsum([0, *counts])
        addresses = [(head.weight.data_ptr(), head.bias.data_ptr()) for head in heads]
        readers = np.column_stack([addresses, counts, starts[:-1]]).astype(np.int64)
        logits = pooled.new_empty(int(starts[-1]))
        width = pooled.shape[1]
        with torch.cuda.device_of(pooled):
            self._programs.classify[(len(heads), -(-max(counts) // _LABELS))](
                upload({0: readers}, pooled.device)[0],
                *(pooled, logits, width, 1 << (width - 1).bit_length(), _LABELS),
            )
        return list(torch.split(logits, counts))


@cache
def load_heads(device: torch.device) -> GpuHeads | None:
    """The programs, compiled; None where they do not work."""
    try:
        heads = GpuHeads()
        right = _matches_plain(heads, device)
    except ImportError:  # no Triton; load_gpu has logged it
        return None
    except Exception as error:  # whatever Triton's compilers and drivers raise
        logger.warning("the GPU's programs for heads do not run (%s), so plain PyTorch is used", type(error).__name__)
        return None
    if not right:
        logger.warning("the GPU's programs for heads give wrong numbers, so plain PyTorch is used")
        return None
    return heads


@torch.no_grad()
def _matches_plain(heads: GpuHeads, device: torch.device) -> bool:
    """Compares with PyTorch, on two sequences of two tasks."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 200, generator=generator).to(device)
    own = [
        Head("mean", (), *(torch.randn(*shape, generator=generator).to(device) for shape in ((labels, 200), (labels,))))
        for labels in (3, 9)
    ]
    pooled = heads.pool(np.array([40, 3]), np.array([20, 37]), x, [False, True])
    wanted = torch.stack([x[40], x[3:40].mean(0)])
    logits = torch.cat(heads.classify(own, pooled))
    computed = torch.cat([head.weight @ vector + head.bias for head, vector in zip(own, wanted, strict=True)])
    return torch.allclose(pooled, wanted, rtol=1e-4, atol=1e-4) and torch.allclose(
        logits, computed, rtol=1e-3, atol=1e-3
    )
