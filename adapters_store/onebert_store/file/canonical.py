"""Lays out the canonical bytes of a delta file (FORMAT.md, "Canonical form"); no other file does."""

import json
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from onebert_store.errors import TensorMismatch
from onebert_store.file import strict_json
from onebert_store.file.manifest import Manifest

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype(np.int32),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def manifest_json(manifest: Manifest) -> str:
    """Returns the manifest's canonical JSON; absent keys stay absent."""
    return strict_json.encode(manifest.model_dump(exclude_none=True))


def canonical_bytes(manifest: Manifest, tensors: Mapping[str, Array]) -> bytes:
    """Lays out a delta file; not with safetensors, because its bytes could change with the library's version."""
    header: dict[str, Any] = {"__metadata__": {"onebert": manifest_json(manifest)}}
    # Wide items first, so that every tensor starts at a multiple of its item size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    start = 0
    for name in order:
        tensor = tensors[name]
        end = start + tensor.nbytes
        header[name] = {"dtype": _code(name, tensor), "shape": [*tensor.shape], "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(tensors[name].tobytes() for name in order)])


def _code(name: str, tensor: Array) -> str:
    code = _CODES.get(tensor.dtype)
    if code is None:
        kind = tensor.dtype.name
        raise TensorMismatch(f"{strict_json.shown(name)} is {kind}; a tensor is float32, float16, bfloat16 or int32")
    return code
