"""A delta file from FORMAT.md alone: the standard library and numpy."""

import json

import numpy as np

DTYPES = {"float32": "F32", "float16": "F16"}


def write_delta(path: str, manifest: dict, tensors: dict[str, np.ndarray]) -> None:
    """Writes `manifest` and `tensors` (names and shapes as in FORMAT.md) to `path`."""
    header = {"__metadata__": {"onebert": json.dumps(manifest)}}
    body = b""
    for name, tensor in tensors.items():
        data = tensor.astype(tensor.dtype.newbyteorder("<")).tobytes()
        span = [len(body), len(body) + len(data)]
        header[name] = {"dtype": DTYPES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": span}
        body += data
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + body)
