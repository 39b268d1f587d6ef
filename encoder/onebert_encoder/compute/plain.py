"""The matrix product with a weight of the base by PyTorch, and the signature of all such products."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.layout.shapes import round_up

Linear = Callable[[Tensor], Tensor]
"""The product with a weight: [tokens, in] -> [tokens, out]."""

# Most tokens per product if a text must have the same bits in every batch.
_PIECE = 1024


class PlainLinear:
    """PyTorch's product with a weight [out, in]."""

    def __init__(self, weight: Tensor, batch_invariant: bool) -> None:
        self.weight = weight
        self._piece = _PIECE if batch_invariant else None
        self._padded = batch_invariant and _varies(*weight.shape, weight.dtype, weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or self._piece is None or (len(x) <= self._piece and not self._padded):
            return F.linear(x, self.weight)
        return self._in_pieces(x, self._piece)

    def _in_pieces(self, x: Tensor, piece: int) -> Tensor:
        """Multiplies at most `piece` tokens at a time; exactly that many if results vary with the number."""
        padded = F.pad(x, (0, 0, 0, -len(x) % piece)) if self._padded else x
        return torch.cat([F.linear(part, self.weight) for part in padded.split(piece)])[: len(x)]


@cache
def _varies(out: int, into: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a token's bits depend on the number of tokens in the product, or on its position among them."""
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, into, generator=generator).to(device, dtype) for rows in (out, _PIECE))
    linear = PlainLinear(weight, batch_invariant=False)
    with torch.no_grad():
        full = linear(x)
        for rows in sorted({round_up(count) for count in range(1, _PIECE)}):
            if not (torch.equal(linear(x[:rows]), full[:rows]) and torch.equal(linear(x[-rows:]), full[-rows:])):
                return True
    return False
