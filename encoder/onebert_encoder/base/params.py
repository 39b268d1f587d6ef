"""The float32 parameters of a base in memory; a weight that a product holds in its own layout has no other copy."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor


class Params(Mapping[str, Tensor]):
    """Parameters by Hugging Face name without prefix; a released one is made again by each look at it."""

    def __init__(self, tensors: Mapping[str, Tensor | Callable[[], Tensor]]) -> None:
        self._held = dict(tensors)

    def __or__(self, changed: Mapping[str, Tensor]) -> "Params":
        return Params({**self._held, **changed})

    def move(self, device: torch.device) -> None:
        for name, held in self._held.items():
            if isinstance(held, Tensor):
                self._held[name] = held.to(device)

    def release(self, name: str, make: Callable[[], Tensor]) -> None:
        """Gives the memory of a tensor back that is not trained; `make` returns the same numbers."""
        held = self._held[name]
        if not (isinstance(held, Tensor) and held.requires_grad):
            self._held[name] = make

    def __getitem__(self, name: str) -> Tensor:
        held = self._held[name]
        return held if isinstance(held, Tensor) else held()

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
