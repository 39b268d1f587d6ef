"""Reads a safetensors file once, into memory of its own: nobody who writes to the file later changes a number."""

import os
from collections.abc import Callable
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onebert_store.file import strict_json

_MOST_HEADER = 100_000_000
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_tensors(path: Path, update: Callable[[Any], object]) -> dict[str, Tensor]:
    """The floating-point tensors, as float32; `update` gets the bytes that they come from, as of a hash.

    A file that is not safetensors raises any Exception.
    """
    tensors = dict[str, Tensor]()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(_read(file, bytearray(8), update), "little")
        if length > min(size, _MOST_HEADER):
            raise ValueError("the header is too long")
        header = strict_json.parse(bytes(_read(file, bytearray(length), update)))
        header.pop("__metadata__", None)
        end = 0
        for name, facts in sorted(header.items(), key=lambda entry: entry[1]["data_offsets"]):
            shape, (start, stop), dtype = facts["shape"], facts["data_offsets"], _FLOATS.get(facts["dtype"])
            if start != end or not start <= stop <= size or min(shape, default=0) < 0:
                raise ValueError("the tensors do not lie one behind the other")
            end = stop
            if dtype is None:
                _read(file, bytearray(stop - start), update)
            elif prod(shape) * dtype.itemsize != stop - start:
                raise ValueError("a tensor has another size than its shape")
            else:
                tensor = torch.empty(shape, dtype=dtype)
                _read(file, tensor.flatten().view(torch.uint8).numpy(), update)
                tensors[name] = tensor.float()
        if file.read(1):
            raise ValueError("bytes lie behind the last tensor")
    return tensors


def _read(file: BufferedReader, buffer: Any, update: Callable[[Any], object]) -> Any:
    """Fills the buffer; raises ValueError if the file ends before."""
    if file.readinto(buffer) != len(buffer):
        raise ValueError("the file ends too early")
    update(buffer)
    return buffer
