"""A delta in memory, its canonical bytes, the grammar of its tensor names, and whether it fits a base."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from onebert_store.errors import BaseMismatch, InvalidManifest, NotFinite, TensorMismatch
from onebert_store.file import strict_json
from onebert_store.file.manifest import SIAMESE, Manifest, head_width, parse_manifest
from onebert_store.file.strict_json import printable
from onebert_store.spec import BaseSpec

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
        raise TensorMismatch(f"{printable(name)} is {kind}; a tensor is float32, float16, bfloat16 or int32")
    return code


DELTA = "delta."
LORA_A = "lora_A."
LORA_B = "lora_B."
LORA_XS = "lora_xs."
SPARSE_INDEX = "sparse_index."
SPARSE_VALUE = "sparse_value."
ADAPTER_DOWN = "adapter_down."
ADAPTER_UP = "adapter_up."
SCALE = "scale."
OUTPUT_SCALE = "output_scale."
HEAD_WEIGHT = "head.weight"
HEAD_BIAS = "head.bias"
HEAD_DENSE_WEIGHT = "head.dense.weight"
HEAD_DENSE_BIAS = "head.dense.bias"
HEAD_NORM = "head.norm.weight"
POOLER_SYMBOL = "b_p"
# The last map of each sublayer: Houlsby et al. 2019 (Figure 2) put their adapters behind this map.
ADAPTED = ("W_m1", "W_m3")
# The places of a layer that a delta may scale: tensor prefix, map, and the dimension of the weight's shape (0 scales
# the output, 1 the input). (IA)³ scales k, v and inner. There is no scale for queries: one for keys has the same
# effect.
PLACES = {
    "k": (SCALE, "W_k", 0),
    "v": (SCALE, "W_v", 0),
    "m1": (OUTPUT_SCALE, "W_m1", 0),
    "m2": (OUTPUT_SCALE, "W_m2", 0),
    "inner": (SCALE, "W_m3", 1),
    "m3": (OUTPUT_SCALE, "W_m3", 0),
}

MAX_NAMED = 10

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Delta:
    """Manifest and tensors of a version: names of FORMAT.md; read-only float32, float16, bfloat16; indices int32."""

    manifest: Manifest
    tensors: Mapping[str, Array]

    @cached_property
    def digest(self) -> str:
        """`sha256:<hex>` of the canonical bytes; equal content has equal digests."""
        return f"sha256:{hashlib.sha256(canonical_bytes(self.manifest, self.tensors)).hexdigest()}"

    def with_manifest(self, **fields: Any) -> "Delta":
        """The delta with other fields of its manifest; raises InvalidManifest if they break a rule."""
        return Delta(parse_manifest({**self.manifest.model_dump(), **fields}), self.tensors)


def require_fit(delta: Delta, spec: BaseSpec) -> None:
    """Checks that a delta fits the base exactly; the error names at most ten offenders.

    Raises:
        BaseMismatch: the delta was made for another base.
        InvalidManifest: the base does not support the pooling, lengths or golden tokens.
        TensorMismatch: tensors are unknown, missing or misshapen.
        NotFinite: a tensor has a NaN or an infinity.
    """
    base_of(delta.manifest, [spec])
    _check_manifest(delta.manifest, spec)
    _check_tensors(delta, spec)
    require_finite(delta.tensors)


def base_of(manifest: Manifest, specs: Sequence[BaseSpec]) -> BaseSpec:
    """Returns the base that a delta was made for; raises BaseMismatch, which names those there are."""
    for spec in specs:
        if spec.digest == manifest.base.digest:
            return spec
    known, base = " and ".join(f"{spec.name} ({spec.digest[:19]}…)" for spec in specs), manifest.base
    if len(specs) == 1:
        raise BaseMismatch(
            f"made for {printable(base.name)} ({base.digest[:19]}…), the base here is {known}; see --base"
        )
    raise BaseMismatch(f"made for {printable(base.name)} ({base.digest[:19]}…), the bases here are {known}; see --base")


def require_finite(tensors: Mapping[str, Array]) -> None:
    """Raises NotFinite, with at most ten names, if a tensor has a NaN or an infinity."""
    bad = [name for name, tensor in tensors.items() if not np.isfinite(tensor).all()]
    if bad:
        raise NotFinite(f"not finite: {listed(bad)}")


def listed(names: Iterable[str]) -> str:
    """Lists at most ten names in order, printable and truncated, and the number of further names."""
    ordered = sorted(names)
    text = ", ".join(printable(name) for name in ordered[:MAX_NAMED])
    return text if len(ordered) <= MAX_NAMED else f"{text} and {len(ordered) - MAX_NAMED} more"


def _check_manifest(manifest: Manifest, spec: BaseSpec) -> None:
    # `none` pools nothing; every base returns all token vectors.
    if manifest.pooling != "none" and manifest.pooling not in spec.poolings:
        raise InvalidManifest(f"pooling: this base has {', '.join(spec.poolings)}, not {manifest.pooling}")
    if manifest.max_length > spec.max_length:
        raise InvalidManifest(f"max_length: {manifest.max_length} is over the base's {spec.max_length}")
    sequences = manifest.golden.input_ids if manifest.golden else []
    if any(len(ids) > manifest.max_length for ids in sequences):
        raise InvalidManifest(f"golden.input_ids: a sequence is longer than max_length {manifest.max_length}")
    if any(token >= spec.vocab_size for ids in sequences for token in ids):
        raise InvalidManifest(f"golden.input_ids: a token is outside the base's {spec.vocab_size}")


def _check_tensors(delta: Delta, spec: BaseSpec) -> None:
    tensors = delta.tensors
    required = _head_shapes(delta, spec)
    for module in spec.modules:
        for shapes_of in (_low_rank_shapes, _core_shapes, _sparse_shapes, _adapter_shapes):
            required |= shapes_of(tensors, spec, module)
    allowed = required | _delta_shapes(delta.manifest.pooling, spec) | _scale_shapes(spec)
    if unknown := tensors.keys() - allowed.keys():
        raise TensorMismatch(f"not tensors of this base and pooling: {listed(unknown)}")
    if missing := required.keys() - tensors.keys():
        raise TensorMismatch(f"missing: {listed(missing)}")
    wrong = [name for name, tensor in tensors.items() if tensor.shape != allowed[name]]
    if wrong:
        shapes = [f"{name} is {[*tensors[name].shape]}, not {[*allowed[name]]}" for name in sorted(wrong)]
        omitted = f"; and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        raise TensorMismatch("; ".join(shapes[:MAX_NAMED]) + omitted)
    _check_indices(tensors, spec)


def _check_indices(tensors: Mapping[str, Array], spec: BaseSpec) -> None:
    """Only indices are integers; each weight's indices lie inside the weight and strictly increase."""
    wrong = [name for name, tensor in tensors.items() if (tensor.dtype == np.int32) != name.startswith(SPARSE_INDEX)]
    if wrong:
        raise TensorMismatch(f"{SPARSE_INDEX}* is I32 and nothing else is: {listed(wrong)}")
    for name, indices in tensors.items():
        if name.startswith(SPARSE_INDEX):
            rows, columns = spec.modules[name.removeprefix(SPARSE_INDEX)]
            if indices[0] < 0 or indices[-1] >= rows * columns or not (np.diff(indices.astype(np.int64)) > 0).all():
                raise TensorMismatch(f"{name}: indices are from 0 to {rows * columns - 1} and strictly increase")


def _head_shapes(delta: Delta, spec: BaseSpec) -> Shapes:
    h, C = spec.hidden_size, len(delta.manifest.labels)
    pooling = delta.manifest.pooling
    shapes: Shapes = {HEAD_WEIGHT: (C, head_width(pooling, h)), HEAD_BIAS: (C,)}
    layer = {HEAD_DENSE_WEIGHT, HEAD_DENSE_BIAS, HEAD_NORM} & delta.tensors.keys()
    if pooling != SIAMESE and (layer or delta.manifest.head):
        shapes |= {HEAD_DENSE_WEIGHT: (h, h), HEAD_DENSE_BIAS: (h,)}
        shapes |= {HEAD_NORM: (h,)} if HEAD_NORM in layer else {}
    return shapes


def _low_rank_shapes(tensors: Mapping[str, Array], spec: BaseSpec, module: str) -> Shapes:
    rows, columns = spec.modules[module]
    a, b = LORA_A + module, LORA_B + module
    if a not in tensors and b not in tensors:
        return {}
    r = tensors[a].shape[0] if a in tensors else tensors[b].shape[-1]
    _check_rank(a if a in tensors else b, r, rows, columns)
    return {a: (r, columns), b: (rows, r)}


def _core_shapes(tensors: Mapping[str, Array], spec: BaseSpec, module: str) -> Shapes:
    name = LORA_XS + module
    if name not in tensors:
        return {}
    r = tensors[name].shape[0]
    _check_rank(name, r, *spec.modules[module])
    return {name: (r, r)}


def _check_rank(name: str, rank: int, rows: int, columns: int) -> None:
    if not 1 <= rank <= min(rows, columns):
        raise TensorMismatch(f"{name} has rank {rank}, not 1 to {min(rows, columns)}")


def _sparse_shapes(tensors: Mapping[str, Array], spec: BaseSpec, module: str) -> Shapes:
    index, value = SPARSE_INDEX + module, SPARSE_VALUE + module
    if index not in tensors and value not in tensors:
        return {}
    n = len(tensors[index if index in tensors else value])
    return {index: (n,), value: (n,)}


def _adapter_shapes(tensors: Mapping[str, Array], spec: BaseSpec, module: str) -> Shapes:
    down, up, h = ADAPTER_DOWN + module, ADAPTER_UP + module, spec.hidden_size
    names = (f"{down}.weight", f"{down}.bias", f"{up}.weight", f"{up}.bias")
    if spec.symbols[module] not in ADAPTED or not tensors.keys() & set(names):
        return {}
    r = tensors[names[0]].shape[0] if names[0] in tensors else 1
    if r > h:
        raise TensorMismatch(f"{names[0]} has {r} units, not 1 to {h}")
    return dict(zip(names, ((r, h), (r,), (h, r), (h,)), strict=True))


def _scale_shapes(spec: BaseSpec) -> Shapes:
    return {
        prefix + module: (shape[side],)
        for module, shape in spec.modules.items()
        for prefix, symbol, side in PLACES.values()
        if spec.symbols[module] == symbol
    }


def _delta_shapes(pooling: str, spec: BaseSpec) -> Shapes:
    return {
        DELTA + name: shape
        for name, shape in spec.parameters.items()
        # Other poolings never read the pooler's bias.
        if pooling == "pooler" or spec.symbols[name] != POOLER_SYMBOL
    }
