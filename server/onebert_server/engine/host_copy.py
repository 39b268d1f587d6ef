"""A tensor on its way into the computer's own memory: the copy begins at once, and only who reads it waits."""

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """Of a tensor on any device; on a CPU there is nothing to copy.

    Into pinned memory, behind what was launched before: copied in another way, the caller would wait for the device.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copy = tensor
        if tensor.device.type == "cuda":
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> np.ndarray:
        """The numbers, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy.numpy()
