"""Reads a safetensors file once, into memory of its own: nobody who writes to the file later changes a number."""

from collections.abc import Callable
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
    tensors, end = dict[str, Tensor](), 0
    with path.open("rb") as file:

        def fill(buffer: Any) -> Any:
            if file.readinto(buffer) != len(buffer):
                raise ValueError("the file ends too early")
            update(buffer)
            return buffer

        length = int.from_bytes(fill(bytearray(8)), "little")
        header = strict_json.parse(bytes(fill(bytearray(min(length, _MOST_HEADER)))))
        header.pop("__metadata__", None)
        for name, facts in sorted(header.items(), key=lambda entry: entry[1]["data_offsets"]):
            dtype, (start, stop) = _FLOATS.get(facts["dtype"]), facts["data_offsets"]
            tensor = torch.empty(facts["shape"] if dtype else stop - start, dtype=dtype or torch.uint8)
            if start != end or stop - start != tensor.nbytes:
                raise ValueError("the tensors do not lie one behind the other")
            fill(tensor.flatten().view(torch.uint8).numpy())
            end = stop
            if dtype:
                tensors[name] = tensor.float()
        if file.read(1):
            raise ValueError("bytes lie behind the last tensor")
    return tensors
