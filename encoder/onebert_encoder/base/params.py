"""The float32 parameters of a base in memory; a weight that a product holds in its own layout has no other copy."""

from collections import UserDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Params(UserDict[str, Any]):
    """Parameters by Hugging Face name without prefix; a released one is made again by each look at it."""

    def __getitem__(self, name: str) -> Tensor:
        held: Tensor | Callable[[], Tensor] = self.data[name]
        return held if isinstance(held, Tensor) else held()

    def move(self, device: torch.device) -> None:
        self.update({name: held.to(device) for name, held in self.data.items() if isinstance(held, Tensor)})

    def release(self, name: str, make: Callable[[], Tensor]) -> None:
        """Gives the memory of a tensor back that is not trained; `make` returns the same numbers."""
        held = self.data[name]
        if not (isinstance(held, Tensor) and held.requires_grad):
            self.data[name] = make
