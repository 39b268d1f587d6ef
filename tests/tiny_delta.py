"""A two-layer base made by hand, deltas for it, and files built byte by byte."""

import json

import numpy as np

from onebert_store.file.delta import Delta
from onebert_store.file.manifest import parse_manifest
from onebert_store.spec import BaseSpec

BASE_DIGEST = "sha256:" + "ab" * 32
QUERY = "encoder.layer.{}.attention.self.query"
KEY = "encoder.layer.{}.attention.self.key"
MIDDLE = "encoder.layer.{}.intermediate.dense"
OUTPUT = "encoder.layer.{}.output.dense"
NORM = "encoder.layer.{}.output.LayerNorm.weight"

SPEC = BaseSpec(
    name="tiny",
    digest=BASE_DIGEST,
    model_type="bert",
    hidden_size=4,
    num_layers=2,
    vocab_size=50,
    max_length=16,
    num_parameters=1000,
    poolings=("cls", "mean", "siamese", "pooler"),
    parameters={
        **{QUERY.format(i) + ".bias": (4,) for i in range(2)},
        **{MIDDLE.format(i) + ".bias": (8,) for i in range(2)},
        **{NORM.format(i): (4,) for i in range(2)},
        "pooler.dense.bias": (4,),
    },
    modules={
        **{module.format(i): (4, 4) for module in (QUERY, KEY) for i in range(2)},
        **{MIDDLE.format(i): (8, 4) for i in range(2)},
        **{OUTPUT.format(i): (4, 8) for i in range(2)},
    },
    symbols={
        **{QUERY.format(i) + ".bias": "b_q" for i in range(2)},
        **{MIDDLE.format(i) + ".bias": "b_m2" for i in range(2)},
        **{NORM.format(i): "g_LN2" for i in range(2)},
        **{QUERY.format(i): "W_q" for i in range(2)},
        **{KEY.format(i): "W_k" for i in range(2)},
        **{MIDDLE.format(i): "W_m2" for i in range(2)},
        **{OUTPUT.format(i): "W_m3" for i in range(2)},
        "pooler.dense.bias": "b_p",
    },
)


def manifest_dict(**changes):
    """A valid manifest as a JSON value, with some keys replaced."""
    return {
        "format": 1,
        "base": {"name": "tiny", "model_type": "bert", "digest": BASE_DIGEST},
        "task_type": "single_label",
        "labels": ["no", "yes"],
        "pooling": "mean",
        "max_length": 16,
        "method": "bitfit",
    } | changes


def tensors_for(labels=2, seed=0, dtype=np.float32):
    """A bias delta, a LoRA pair and a head."""
    rng = np.random.default_rng(seed)
    shapes = {
        "delta." + QUERY.format(0) + ".bias": (4,),
        "delta." + NORM.format(1): (4,),
        "lora_A." + MIDDLE.format(1): (2, 4),
        "lora_B." + MIDDLE.format(1): (8, 2),
        "head.weight": (labels, 4),
        "head.bias": (labels,),
    }
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def make_delta(seed=0, tensors=None, **changes):
    """A valid delta, or one with another manifest or other tensors."""
    manifest = manifest_dict(**changes)
    if tensors is None:
        tensors = tensors_for(len(manifest["labels"]), seed)
    return Delta(parse_manifest(manifest), tensors)


def entry(begin, end, shape=None, dtype="F32"):
    """A tensor's header entry; the shape defaults to a float32 vector that fills the span."""
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def file_bytes(header, body=b"", size=None):
    """A file of a header (bytes, or a value to dump), a body, and a claimed header length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + body


def metadata(manifest=None):
    """The `__metadata__` of a valid (or the given) manifest."""
    return {"onebert": json.dumps(manifest_dict() if manifest is None else manifest)}
