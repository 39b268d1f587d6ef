"""Tensors of the Open Inference Protocol: in JSON, or as binary data after it (extension `binary_tensor_data`)."""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from onebert_server.http.formats import Reply
from onebert_server.http.strict import parsed
from onebert_server.limits import MAX_ITEMS
from onebert_store.errors import InvalidInput

HEAD_LENGTH = b"inference-header-content-length"
"""The header with the length in bytes of the JSON before the tensors."""

_LENGTH = struct.Struct("<I")
_NUMPY = {"FP32": np.dtype("<f4"), "BOOL": np.dtype("?")}


class Tensor(NamedTuple):
    """An output tensor; `data` is flat: strings for BYTES, else numbers."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: Sequence[Any]


def read_body(body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Any:
    """Decodes a request and moves binary tensors into its JSON."""
    lengths = [value for name, value in headers if name == HEAD_LENGTH]
    if not lengths:
        return parsed(body)
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 9 or int(lengths[0]) > len(body):
        raise InvalidInput("Inference-Header-Content-Length does not say where the JSON ends")
    document, rest = parsed(body[: int(lengths[0])]), body[int(lengths[0]) :]
    inputs = document.get("inputs") if isinstance(document, dict) else None
    for index, tensor in enumerate(inputs if isinstance(inputs, list) else []):
        size = _taken_size(tensor, f"inputs.{index}")
        if size is None:
            continue
        if size > len(rest) or "data" in tensor:
            raise InvalidInput(f"inputs.{index}: the bytes behind the JSON are not those of its tensors")
        tensor["data"], rest = list(_texts(rest[:size], f"inputs.{index}.data")), rest[size:]
    if rest:
        raise InvalidInput("behind the JSON are bytes of no tensor")
    return document


def _taken_size(tensor: Any, where: str) -> int | None:
    parameters = tensor.get("parameters") if isinstance(tensor, dict) else None
    size = parameters.pop("binary_data_size", None) if isinstance(parameters, dict) else None
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise InvalidInput(f"{where}.parameters.binary_data_size must be a whole number")
    return size


def _texts(content: bytes, where: str) -> Iterator[str]:
    at = count = 0
    while at < len(content):
        if count == MAX_ITEMS:
            raise InvalidInput(f"{where} has more than {MAX_ITEMS} texts")
        if at + _LENGTH.size > len(content):
            raise InvalidInput(f"{where}.{count} ends within its length")
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        if at + length > len(content):
            raise InvalidInput(f"{where}.{count} ends within its text")
        try:
            yield content[at : at + length].decode()
        except UnicodeDecodeError:
            raise InvalidInput(f"{where}.{count} is not UTF-8") from None
        at += length
        count += 1


def flat(data: Any, shape: Sequence[int]) -> list[Any]:
    """Flattens a tensor's nested lists; raises InvalidInput if the size differs from the shape's."""
    while isinstance(data, list) and data and isinstance(data[0], list):
        if not all(isinstance(part, list) for part in data):
            raise InvalidInput("the data of a tensor is neither flat nor nested")
        data = [value for part in data for value in part]
    if len(data) != math.prod(shape):
        raise InvalidInput("the data of a tensor has not the size that its shape says")
    values: list[Any] = data
    return values


def reply(head: Mapping[str, Any], tensors: Sequence[Tensor], binary: Sequence[bool]) -> Reply:
    """Encodes a reply; tensors with `binary` set follow the JSON as bytes."""
    outputs, tail = [], []
    for tensor, as_bytes in zip(tensors, binary, strict=True):
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if as_bytes:
            tail.append(_bytes_of(tensor))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = list(tensor.data)
        outputs.append(entry)
    content = msgspec.json.encode({**head, "outputs": outputs})
    if not tail:
        return Reply(content)
    lengths = {HEAD_LENGTH.decode(): str(len(content))}
    return Reply(b"".join([content, *tail]), lengths, "application/octet-stream")


def _bytes_of(tensor: Tensor) -> bytes:
    if tensor.datatype == "BYTES":
        encoded = [text.encode() for text in tensor.data]
        return b"".join(part for text in encoded for part in (_LENGTH.pack(len(text)), text))
    return np.array(tensor.data, _NUMPY[tensor.datatype]).tobytes()
