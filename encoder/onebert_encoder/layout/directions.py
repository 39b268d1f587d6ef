"""Directions of one map that the branches of many rows share; each row has its own numbers between them."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Directions:
    """The leading directions of a weight W ≈ up · down, largest first; rank r uses the first r.

    `down` is [rank, in], `up` [out, rank] column-major; `reach` as in `LowRank`. Variants for a dtype or a wider
    product are cached, so rows that share directions share one object.
    """

    down: Tensor
    up: Tensor
    reach: Tensor | None = None
    _made: dict[Hashable, "Directions"] = field(default_factory=dict, repr=False)

    def to(self, dtype: torch.dtype) -> "Directions":
        if dtype == self.down.dtype:
            return self
        return self._once(dtype, lambda: Directions(self.down.to(dtype), self.up.T.to(dtype).T, self.reach))

    def among(self, index: int, count: int) -> "Directions":
        """The directions widened for a product of `count` equal maps side by side; this map is number `index`."""
        return self if count == 1 else self._once((index, count), lambda: self._widened(index, count))

    def _widened(self, index: int, count: int) -> "Directions":
        out, rank = self.up.shape
        own = slice(index * out, (index + 1) * out)
        columns = self.up.new_zeros(rank, count * out)
        columns[:, own] = self.up.T
        return Directions(self.down, columns.T, torch.tensor([[own.start, own.stop]] * rank))

    def _once(self, key: Hashable, make: Callable[[], "Directions"]) -> "Directions":
        if key not in self._made:
            # Training may use tensors that answering created first, so they must not be inference tensors.
            with torch.inference_mode(False), torch.no_grad():
                # If several threads get here at once, all use the object that the first one stored.
                return self._made.setdefault(key, make())
        return self._made[key]
