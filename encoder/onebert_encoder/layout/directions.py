"""Directions of one map that the branches of many rows share, each row with numbers of its own between them."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Directions:
    """The leading directions of a weight W ≈ up · down, the most important first: rank r takes the first r of them.

    What is made of them for a product or a dtype is made once, so that rows which share directions share one object.

    Attributes:
        down: [rank, in].
        up: [out, rank], one column after the other in memory.
        reach: [rank, 2] int64 on the CPU: from which to which output each column of `up` is not zero; None where
            anywhere.
    """

    down: Tensor
    up: Tensor
    reach: Tensor | None = None
    _made: dict[Hashable, "Directions"] = field(default_factory=dict, repr=False)

    def to(self, dtype: torch.dtype) -> "Directions":
        """The same in the compute dtype."""
        if dtype == self.down.dtype:
            return self
        return self._once(dtype, lambda: Directions(self.down.to(dtype), self.up.T.to(dtype).T, self.reach))

    def among(self, index: int, count: int) -> "Directions":
        """For a product of `count` maps of this size side by side, of which this one is number `index`."""
        return self if count == 1 else self._once((index, count), lambda: self._widened(index, count))

    def _widened(self, index: int, count: int) -> "Directions":
        out, rank = self.up.shape
        own = slice(index * out, (index + 1) * out)
        columns = self.up.new_zeros(rank, count * out)
        columns[:, own] = self.up.T
        return Directions(self.down, columns.T, torch.tensor([[own.start, own.stop]] * rank))

    def _once(self, key: Hashable, make: Callable[[], "Directions"]) -> "Directions":
        if key not in self._made:
            # Also a training may use what an answer was the first to ask for.
            with torch.inference_mode(False), torch.no_grad():
                # Of threads that come here together all get what the first has kept.
                return self._made.setdefault(key, make())
        return self._made[key]
