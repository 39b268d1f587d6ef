"""Copies numpy index arrays to the encoder's device; to a GPU in one asynchronous transfer."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
Key = TypeVar("Key")

# Alignment of the arrays in the shared buffer, in bytes: a GPU's widest load.
_ALIGNMENT = 16
_DTYPES = {np.dtype(name): getattr(torch, name) for name in ("bool", "int32", "int64", "float32")}


def upload(arrays: Mapping[Key, Array], device: torch.device) -> dict[Key, Tensor]:
    """The arrays (bool, int32, int64 or float32) as tensors on a device; on a CPU they share the arrays' memory."""
    if device.type == "cpu":
        return dict(zip(arrays, map(torch.from_numpy, arrays.values()), strict=True))
    return upload_at_once(arrays, device)


def upload_at_once(arrays: Mapping[Key, Array], device: torch.device) -> dict[Key, Tensor]:
    """The arrays as tensors on a device, copied through one buffer, pinned for a GPU so that the copy need not wait."""
    if not arrays:
        return {}
    offsets = [*accumulate((-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays.values()), initial=0)]
    buffer = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    room = buffer.numpy()
    for offset, array in zip(offsets, arrays.values(), strict=False):
        room[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    moved = buffer.to(device, non_blocking=True)
    return {
        key: moved[offset : offset + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
        for offset, (key, array) in zip(offsets, arrays.items(), strict=False)
    }
