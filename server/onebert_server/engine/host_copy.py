"""Copies tensors into the host's memory: the copy begins at once, and only its reader waits."""

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """A copy of a tensor of any device; on a CPU the tensor itself.

    A GPU copies into pinned memory, behind earlier work; other memory would block the caller until the GPU is done.
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
        if self._event is not None:
            self._event.synchronize()
        return self._copy.numpy()
