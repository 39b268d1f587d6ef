"""The float32 parameters of a base in memory; a weight that a product holds in its own layout has no other copy."""

from collections import UserDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Params(UserDict[str, Any]):
    """Parameters by Hugging Face name without prefix; a released one is made again by each look at it."""

    def __getitem__(self, name: str) -> Tensor:
        value: Tensor | Callable[[], Tensor] = self.data[name]
        return value if isinstance(value, Tensor) else value()

    def move(self, device: torch.device) -> None:
        self.update({name: value.to(device) for name, value in self.data.items() if isinstance(value, Tensor)})

    def release(self, name: str, make: Callable[[], Tensor]) -> None:
        """Gives the memory of a tensor back that is not trained; `make` returns the same numbers."""
        value = self.data[name]
        if not (isinstance(value, Tensor) and value.requires_grad):
            self.data[name] = make
