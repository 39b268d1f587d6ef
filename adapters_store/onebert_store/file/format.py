"""Reads and writes delta files (FORMAT.md): a strict reader in front of safetensors, and the canonical writer."""

import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from onebert_store.disk import POINTER, is_pointer, write_whole
from onebert_store.errors import InvalidDelta, InvalidInput, InvalidManifest, MalformedFile, TooLarge
from onebert_store.file import strict_json
from onebert_store.file.delta import DTYPES, Delta, canonical_bytes, require_finite
from onebert_store.file.manifest import Manifest, parse_manifest
from onebert_store.file.strict_json import printable

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_HEADER_BYTES = 1024 * 1024
MAX_TENSORS = 4096
MAX_RANK = 2
MAX_DIMENSION = 2**31 - 1
MAX_NAME_LENGTH = 256

_NAME = re.compile(rf"[!-~]{{1,{MAX_NAME_LENGTH}}}")
_deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = safetensors.deserialize
_TENSOR_KEYS = {"dtype", "shape", "data_offsets"}


def loads(data: bytes) -> Delta:
    """Parses a delta file; checks every claim of its header against the real bytes first.

    Raises:
        TooLarge: the file, its header or its number of tensors is over the limit.
        MalformedFile: the bytes do not follow the layout.
        InvalidManifest: the manifest breaks a rule.
        NotFinite: a tensor has a NaN or an infinity.
    """
    header, body_bytes = _read_header(data)
    manifest = _read_manifest(header)
    dtypes = _check_layout(header, body_bytes)
    try:
        views = _deserialize(data)
    except safetensors.SafetensorError:
        raise MalformedFile("the safetensors library does not read it") from None
    tensors = {
        # Read-only, so that the cached digest stays correct.
        name: np.frombuffer(memoryview(view["data"]).toreadonly(), dtypes[name]).reshape(view["shape"])
        for name, view in views
    }
    require_finite(tensors)
    return Delta(manifest, tensors)


def dumps(delta: Delta) -> bytes:
    """Writes the canonical file: equal content, equal bytes; raises InvalidDelta or TooLarge if `loads` would."""
    data = canonical_bytes(delta.manifest, delta.tensors)
    loads(data)
    return data


def load(path: Path) -> Delta:
    """Reads the delta file at `path` like `loads`; raises InvalidInput if the file cannot be read."""
    return load_with_bytes(path)[0]


def load_with_bytes(path: Path) -> tuple[Delta, bytes]:
    """Reads like `load` and also returns the bytes; reads only once, because a pipe's content comes once."""
    name = printable(path.name or str(path))
    try:
        with open(path, "rb") as file:
            # One byte over the limit is enough for `loads` to reject it.
            data = file.read(MAX_FILE_BYTES + 1)
        return loads(data), data
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error.strerror}") from None
    except (InvalidDelta, TooLarge) as error:
        raise type(error)(f"{name}: {error.detail}") from None


def save(path: Path, delta: Delta) -> None:
    """Writes the canonical file at `path`, whole or not at all; raises like `dumps`, or StorageFull."""
    write_whole(path, dumps(delta))


def _read_header(data: bytes) -> tuple[dict[str, Any], int]:
    if len(data) > MAX_FILE_BYTES:
        raise TooLarge(f"a delta file has at most {MAX_FILE_BYTES} bytes")
    if is_pointer(data):
        raise MalformedFile(POINTER)
    if len(data) < 8:
        raise MalformedFile("the file ends inside the 8 bytes of the header length")
    size = int.from_bytes(data[:8], "little")
    body_bytes = len(data) - 8 - size
    if body_bytes < 0:
        # In a file of another kind, the first 8 bytes are not a header's length.
        claim = f": its header claims {size} bytes, {len(data) - 8} are left" if size <= MAX_HEADER_BYTES else ""
        raise MalformedFile(f"this is no delta file, or it was cut short{claim}")
    if size > MAX_HEADER_BYTES:
        raise TooLarge(f"a header has at most {MAX_HEADER_BYTES} bytes, this one {size}")
    if data[8:9] != b"{":
        raise MalformedFile("the header does not start with '{'")
    try:
        header = strict_json.parse(data[8 : 8 + size])
    except ValueError as error:
        raise MalformedFile(f"header: {error}") from None
    return header, body_bytes


def _read_manifest(header: dict[str, Any]) -> Manifest:
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.keys() != {"onebert"}:
        raise MalformedFile("__metadata__ must be an object with the one key 'onebert'")
    text = metadata["onebert"]
    if not isinstance(text, str):
        raise MalformedFile("__metadata__.onebert must be a string of JSON")
    try:
        return parse_manifest(strict_json.parse(text.encode()))
    except UnicodeEncodeError:
        raise InvalidManifest("a text has half a surrogate pair") from None
    except ValueError as error:
        raise InvalidManifest(str(error)) from None


def _check_layout(header: dict[str, Any], body_bytes: int) -> dict[str, np.dtype[Any]]:
    """Checks every entry, and that the tensors cover the body without a hole or an overlap."""
    if len(header) > MAX_TENSORS:
        raise TooLarge(f"a delta has at most {MAX_TENSORS} tensors, this one {len(header)}")
    dtypes: dict[str, np.dtype[Any]] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        dtypes[name] = _check_entry(name, entry)
        spans.append((*entry["data_offsets"], name))
    spans.sort()
    for (_, end, before), (start, _, after) in pairwise([(0, 0, "the header"), *spans]):
        if start != end:
            fault = "a hole between" if start > end else "an overlap of"
            raise MalformedFile(f"{fault} {before} and {after}")
    covered = spans[-1][1] if spans else 0
    if covered != body_bytes:
        raise MalformedFile(f"the tensors cover {covered} bytes, the body has {body_bytes}")
    return dtypes


def _check_entry(name: str, entry: Any) -> np.dtype[Any]:
    if not _NAME.fullmatch(name):
        raise MalformedFile(f"a tensor name is 1 to {MAX_NAME_LENGTH} printable ASCII characters: {printable(name)}")
    if not isinstance(entry, dict) or entry.keys() != _TENSOR_KEYS:
        raise MalformedFile(f"{printable(name)} must have exactly dtype, shape and data_offsets")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise MalformedFile(f"{printable(name)}: dtype must be one of {', '.join(DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _integers(shape, 1) or not 1 <= len(shape) <= MAX_RANK:
        raise MalformedFile(f"{printable(name)}: shape must be 1 to {MAX_RANK} integers of 1 to {MAX_DIMENSION}")
    if not _integers(offsets, 0) or len(offsets) != 2:
        raise MalformedFile(f"{printable(name)}: data_offsets must be two integers of 0 to {MAX_DIMENSION}")
    needed = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        span = offsets[1] - offsets[0]
        raise MalformedFile(f"{printable(name)}: shape and dtype need {needed} bytes, data_offsets span {span}")
    return dtype


def _integers(values: Any, lowest: int) -> bool:
    return isinstance(values, list) and all(type(value) is int and lowest <= value <= MAX_DIMENSION for value in values)
