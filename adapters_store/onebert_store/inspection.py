"""What `onebert inspect` says about a delta file: facts as JSON values, and the tables that show them."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from onebert_store import strict_json
from onebert_store.canonical import Array
from onebert_store.delta import ADAPTER_UP, DELTA, LORA_A, LORA_B, SCALE, SPARSE_INDEX, SPARSE_VALUE, Delta
from onebert_store.format import loads, read_file
from onebert_store.strict_json import shown

MAX_LABELS_SHOWN = 12

_LAYER = re.compile(r"\blayer\.\d+\.")


def inspect_file(path: Path) -> dict[str, Any]:
    """Reads a delta file and describes it in plain JSON values; sizes are in bytes.

    Raises:
        InvalidDelta: the file is refused.
        TooLarge: the same.
        InvalidInput: it cannot be read.
    """
    data = read_file(path)
    delta = loads(data)
    manifest = delta.manifest.model_dump(exclude={"golden"})
    # Where a sparse value lies is no number of its own.
    sizes = {name: tensor.size for name, tensor in delta.tensors.items() if not name.startswith(SPARSE_INDEX)}
    head = sum(size for name, size in sizes.items() if name.startswith("head."))
    return manifest | {
        "digest": delta.digest,
        "bytes": len(data),
        "tensors": len(delta.tensors),
        "dtypes": sorted({tensor.dtype.name for tensor in delta.tensors.values()}),
        "parameters": {"delta": sum(sizes.values()) - head, "head": head},
        "golden": len(delta.manifest.golden.input_ids) if delta.manifest.golden else 0,
        "changes": _changes(delta),
    }


def render(facts: dict[str, Any]) -> RenderableType:
    """The tables for people; client text in them is printable and cut."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(facts):
        table.add_row(name, value)
    if not facts["changes"]:
        return table
    changes = Table("change", "layers", "mean |change|", title="What the delta changes", title_justify="left")
    for change in facts["changes"]:
        changes.add_row(shown(change["name"]), str(change["tensors"]), f"{change['mean']:.3g}")
    return Group(table, "", changes)


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    base, parameters, labels = facts["base"], facts["parameters"], facts["labels"]
    more = f" and {len(labels) - MAX_LABELS_SHOWN} more" if len(labels) > MAX_LABELS_SHOWN else ""
    return [
        ("base", f"{shown(base['name'])} ({shown(base['model_type'])})"),
        ("base digest", base["digest"]),
        ("task type", facts["task_type"]),
        ("labels", f"{len(labels)}: " + ", ".join(shown(one, 40) for one in labels[:MAX_LABELS_SHOWN]) + more),
        ("method", shown(facts["method"])),
        ("pooling", facts["pooling"]),
        ("max length", f"{facts['max_length']} tokens"),
        ("digest", facts["digest"]),
        ("file", f"{facts['bytes']:,} bytes, {facts['tensors']} tensors ({', '.join(facts['dtypes'])})"),
        ("parameters", f"{parameters['delta']:,} in the delta, {parameters['head']:,} in the head"),
        ("golden", f"{facts['golden']} sequences"),
        *((f"training.{shown(key, 40)}", _brief(value)) for key, value in facts["training"].items()),
    ]


def _brief(value: Any) -> str:
    return shown(value if isinstance(value, str) else strict_json.encode(value), 200)


def _changes(delta: Delta) -> list[dict[str, Any]]:
    """Mean absolute change of each parameter over its layers; of a LoRA pair, that of the product BA.

    Of a sparse difference it is that of the changed places, of an adapter that of its second map, of a scale the
    distance from one.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for name, tensor in delta.tensors.items():
        if name.startswith(DELTA):
            found[_without_layer(name.removeprefix(DELTA))].append(_mean(tensor))
        elif name.startswith(SPARSE_VALUE):
            found[_without_layer(name.removeprefix(SPARSE_VALUE)) + ".weight (sparse)"].append(_mean(tensor))
        elif name.startswith(ADAPTER_UP) and name.endswith(".weight"):
            found[_without_layer(name.removeprefix(ADAPTER_UP)) + " (adapter)"].append(_mean(tensor))
        elif name.startswith(SCALE):
            found[_without_layer(name.removeprefix(SCALE)) + " (scale)"].append(_mean(tensor.astype(np.float32) - 1))
        elif name.startswith(LORA_A):
            module = name.removeprefix(LORA_A)
            b = delta.tensors.get(LORA_B + module)
            if b is not None and b.ndim == tensor.ndim == 2 and b.shape[1] == tensor.shape[0]:
                found[_without_layer(module) + ".weight"].append(_mean(b.astype(np.float32) @ tensor))
    return [
        {"name": name, "tensors": len(means), "mean": float(np.mean(means))} for name, means in sorted(found.items())
    ]


def _without_layer(name: str) -> str:
    return _LAYER.sub("layer.*.", name)


def _mean(change: Array) -> float:
    return float(np.abs(change.astype(np.float64)).mean())
