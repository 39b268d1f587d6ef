"""Copies tensors into the host's memory: the copy begins at once, and only its reader waits."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """A copy of tensors of one device and dtype; on a CPU the tensors themselves.

    A GPU copies all of them at once into pinned memory, behind earlier work; other memory would block the caller until
    the GPU is done.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._event: torch.cuda.Event | None = None
        if tensors[0].device.type == "cuda":
            flat = torch.cat([one.flatten() for one in tensors])
            self._copy = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
            self._copy.copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(flat.device))

    def read(self) -> list[np.ndarray]:
        if self._event is None:
            return [one.numpy() for one in self._tensors]
        self._event.synchronize()
        edges = pairwise(accumulate((one.numel() for one in self._tensors), initial=0))
        flat = self._copy.numpy()
        return [flat[start:stop].reshape(one.shape) for one, (start, stop) in zip(self._tensors, edges, strict=True)]
