"""Cuts changes of the base's matrices into parts of rank one, and orders the parts by their gain.

The parts come from the singular value decomposition. All matrices share one threshold on the gain of a part: its
singular value squared, divided by the numbers that it takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.compute.threads import one_thread
from onebert_store.errors import NotFinite
from onebert_store.file.delta import LORA_A, LORA_B, Array

# Smaller singular values, relative to the largest, are rounding in any dtype.
_ROUNDING = 1e-6
# Half precision rounds by 0.05 %, far below the parts that are left out, and halves the file.
_DTYPE = np.float16
_NO_PARTS = "a difference of two matrices has no finite singular values"
BYTES = _DTYPE().itemsize  # of a number in the file


@dataclass(frozen=True)
class Factors:
    """A difference B A as parts B[:, i] A[i], the best first: A is [r, in], B [out, r], `gain` [r]."""

    A: Tensor
    B: Tensor
    gain: Tensor


def factorize(difference: Tensor) -> Factors:
    """The parts of one difference [out, in], computed in its dtype; raises NotFinite if the numbers are too large.

    The eigenvectors of the smaller Gram matrix take a third of the time of a decomposition of the difference. Singular
    values below the square root of the dtype's precision, relative to the largest, are rounding and left out; half
    precision hides such parts beside the others anyway.
    """
    wide = difference.shape[0] < difference.shape[1]
    tall = difference.T if wide else difference
    gram = tall.T @ tall
    try:
        with one_thread():
            vectors = torch.linalg.eigh(gram).eigenvectors.flip(1)  # the largest come last
    except RuntimeError:  # PyTorch's LinAlgError, which it does not export
        raise NotFinite(_NO_PARTS) from None
    images = tall @ vectors
    S = images.norm(dim=0)
    if not S.isfinite().all():  # infinite, which some builds decompose
        raise NotFinite(_NO_PARTS)
    rounding = max(_ROUNDING, torch.finfo(S.dtype).eps ** 0.5)
    rank = int((rounding * S.max() < S).sum())
    # Divides each part's size evenly between A and B, far from the ends of half precision in any working model.
    root = S[:rank].sqrt()
    if not (root < np.finfo(_DTYPE).max).all():
        raise NotFinite("a difference of two matrices is too large for half precision")
    inner, outer = root[:, None] * vectors.T[:rank], images[:, :rank] / root
    A, B = (outer.T, inner.T) if wide else (inner, outer)
    return Factors(A, B, S[:rank] ** 2 / sum(difference.shape))


class Parts:
    """The parts of all differences by gain; the first `count` make a delta's tensors, of rank `max_rank` or less."""

    def __init__(self, factors: Mapping[str, Factors], max_rank: int | None) -> None:
        self._factors = factors
        owners, gains, sizes = [], [], []
        for owner, factor in enumerate(factors.values()):
            rank = len(factor.gain[:max_rank])
            owners += [owner] * rank
            gains += factor.gain[:rank].tolist()
            sizes += [BYTES * (factor.A.shape[1] + factor.B.shape[0])] * rank
        order = np.argsort(-np.array(gains), kind="stable")
        self._owners = np.array(owners, dtype=np.int64)[order]
        self._ends = np.cumsum(np.array(sizes, dtype=np.int64)[order])

    def fitting(self, size: int) -> int:
        """The number of leading parts that fit into `size` bytes."""
        return int(np.searchsorted(self._ends, size, side="right"))

    def __len__(self) -> int:
        return len(self._owners)

    def ranks(self, count: int) -> list[int]:
        """The rank of each matrix that the first `count` parts change."""
        ranks = np.bincount(self._owners[:count], minlength=len(self._factors))
        return [rank for rank in ranks.tolist() if rank]

    def tensors(self, count: int) -> dict[str, Array]:
        tensors: dict[str, Array] = {}
        ranks = np.bincount(self._owners[:count], minlength=len(self._factors)).tolist()
        for (module, factor), rank in zip(self._factors.items(), ranks, strict=True):
            if rank:
                tensors[LORA_A + module] = factor.A[:rank].contiguous().numpy().astype(_DTYPE)
                tensors[LORA_B + module] = factor.B[:, :rank].contiguous().numpy().astype(_DTYPE)
        return tensors
