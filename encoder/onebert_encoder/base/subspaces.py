"""The leading singular directions of a base's weights, for LoRA-XS; all tasks share them."""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from onebert_encoder.layout.branches import Directions


class Subspaces:
    """For each weight W = U Σ Vᵀ the first columns of U Σ and rows of Vᵀ, computed on first use.

    The directions follow from the float32 weight alone, so delta files do not store them: singular values fall, and the
    sign of each pair makes the largest number of U's column positive. In float64 two machines differ by far less than
    float32 resolves, unless two singular values are nearly equal; then the file's golden logits show the difference.
    """

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        self._params = params
        self._lock = threading.Lock()
        self._cache: dict[str, Directions] = {}

    def directions(self, module: str, rank: int) -> Directions:
        """Vᵀ and U Σ of a module's weight, of this rank or a larger one, float32 on the base's device."""
        with self._lock:
            known = self._cache.get(module)
            # A larger rank contains the smaller ones, so only the largest is kept here. Rows of smaller ranks keep
            # their copies; ranks are powers of two, so these together take no more than the largest.
            if known is None or len(known.down) < rank:
                known = self._cache[module] = _decompose(self._params[f"{module}.weight"], 1 << (rank - 1).bit_length())
        return known

    def factors(self, module: str, rank: int) -> tuple[Tensor, Tensor]:
        """U Σ [out, rank] and Vᵀ [rank, in] of a module's weight."""
        directions = self.directions(module, rank)
        return directions.up[:, :rank], directions.down[:rank]


@torch.inference_mode(False)
@torch.no_grad()
def _decompose(weight: Tensor, rank: int) -> Directions:
    U, sizes, Vt = torch.linalg.svd(weight.cpu().double(), full_matrices=False)
    U, sizes, Vt = U[:, :rank], sizes[:rank], Vt[:rank]
    signs = U.gather(0, U.abs().argmax(dim=0, keepdim=True)).sign()[0]
    # Copies: a slice would keep all directions in memory.
    columns, down = (
        factor.contiguous().float().to(weight.device) for factor in ((U * (sizes * signs)).T, Vt * signs[:, None])
    )
    return Directions(down, columns.T)
