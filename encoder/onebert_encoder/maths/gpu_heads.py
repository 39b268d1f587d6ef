"""Pooling and classifiers of a mixed batch on a GPU, in one launch each for any mix of tasks and labels."""

import logging
from functools import cache

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.layout.upload import Array, upload
from onebert_encoder.maths.rows import POOLED, Head, Heads, Number

logger = logging.getLogger("onebert.kernels")

# One program of `pool` takes C_BLOCK columns, T_BLOCK tokens at a time; one of `classify` takes _LABELS labels.
_POOL = {"T_BLOCK": 16, "C_BLOCK": 128}
_LABELS = 4


class GpuHeads:
    """Pools and classifies a batch with Triton programs, without gradients; `first`, `lengths` as in `Batch`."""

    def __init__(self, heads: Heads, first: Array, lengths: Array, device: torch.device) -> None:
        from onebert_encoder.compute.kernels.gpu import head_programs  # noqa: PLC0415

        self._programs = head_programs
        labels = heads.labels
        self._sequences, self._logits, self._most = len(labels), int(labels.sum()), int(labels.max())
        readers = np.empty((len(labels), len(self._programs.Reader)), dtype=np.int64)
        readers[:, :-1], readers[:, -1] = heads.numbers[:, : Number.POOLED], np.cumsum(labels) - labels
        spans = np.stack([first, np.where(heads.pooled == POOLED["mean"], lengths, 1)], axis=1)
        # Pooled spans [sequences, 2] (first token, count) and readers [sequences, fields] (see `Reader`).
        tensors = upload({"spans": spans, "readers": readers}, device)
        self._spans, self._readers = tensors["spans"], tensors["readers"]

    def pool(self, x: Tensor) -> Tensor:
        """[sequences, h] float32: each head's choice of the mean over the tokens or the first token."""
        sequences, width = self._sequences, x.shape[1]
        pooled = x.new_empty(sequences, width, dtype=torch.float32)
        with torch.cuda.device_of(x):
            self._programs.pool[(sequences, -(-width // _POOL["C_BLOCK"]))](x, self._spans, pooled, width, **_POOL)
        return pooled

    def classify(self, pooled: Tensor) -> Tensor:
        """Logits of the sequences of `pooled` [sequences, h], each by its own head; all matrices are contiguous."""
        logits, width = pooled.new_empty(self._logits), pooled.shape[1]
        with torch.cuda.device_of(pooled):
            self._programs.classify[(self._sequences, -(-self._most // _LABELS))](
                *(self._readers, pooled, logits, width, 1 << (width - 1).bit_length(), _LABELS)
            )
        return logits


@cache
def load_heads(device: torch.device) -> type[GpuHeads] | None:
    """The compiled programs; None if they do not run or give wrong numbers."""
    try:
        right = _matches_plain(device)
    except ImportError:  # no Triton; load_gpu has logged it
        return None
    except Exception as error:  # Triton's compilers and drivers may raise anything
        logger.warning("the GPU's programs for heads do not run (%s), so plain PyTorch is used", type(error).__name__)
        return None
    if not right:
        logger.warning("the GPU's programs for heads give wrong numbers, so plain PyTorch is used")
    return GpuHeads if right else None


@torch.no_grad()
def _matches_plain(device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 200, generator=generator).to(device)
    drawn = (torch.randn(*shape, generator=generator).to(device) for shape in ((3, 200), (3,), (9, 200), (9,)))
    drawn_heads = [Head(pooling, (), next(drawn), next(drawn)) for pooling in ("cls", "mean")]
    numbers = np.array([head.numbers for head in drawn_heads])
    heads = GpuHeads(Heads(drawn_heads, np.arange(2), numbers), np.array([40, 3]), np.array([20, 37]), device)
    pooled = heads.pool(x)
    wanted = torch.stack([x[40], x[3:40].mean(0)])
    logits = heads.classify(pooled)
    computed = torch.cat([head.weight @ vector + head.bias for head, vector in zip(drawn_heads, wanted, strict=True)])
    return torch.allclose(pooled, wanted, rtol=1e-4, atol=1e-4) and torch.allclose(
        logits, computed, rtol=1e-3, atol=1e-3
    )
