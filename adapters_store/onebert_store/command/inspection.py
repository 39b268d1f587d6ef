"""The output of `onebert inspect` for a delta file: facts as JSON values, and tables that show them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from onebert_store.command import console
from onebert_store.file import strict_json
from onebert_store.file.delta import SPARSE_INDEX, Delta
from onebert_store.file.format import load_with_bytes
from onebert_store.file.strict_json import printable

MAX_LABELS_SHOWN = 12
MAX_ROWS_SHOWN = 60

# A rate in a calibration: on its own rows, and the bounds of its interval on new rows.
_RATE = {"here", "low", "high"}


def inspect_file(path: Path) -> dict[str, Any]:
    """Reads a delta file and describes it in plain JSON values; sizes are in bytes."""
    delta, data = load_with_bytes(path)
    manifest = delta.manifest.model_dump(
        exclude={"golden": True, "reference": True, "training": {"fingerprint"}}, exclude_none=True
    )
    return manifest | {
        "digest": delta.digest,
        "bytes": len(data),
        "tensors": len(delta.tensors),
        "dtypes": sorted({tensor.dtype.name for tensor in delta.tensors.values()}),
        "parameters": _count_parameters(delta),
        "golden": len(delta.manifest.golden.input_ids) if delta.manifest.golden else 0,
        "fingerprint": "fingerprint" in delta.manifest.training,
        "reference": delta.manifest.reference and delta.manifest.reference.model_dump(include={"split", "rows"}),
    }


def _count_parameters(delta: Delta) -> dict[str, int]:
    """Counts the numbers outside the head and in it; indices of sparse values are not among them."""
    sizes = {name: tensor.size for name, tensor in delta.tensors.items() if not name.startswith(SPARSE_INDEX)}
    head = sum(size for name, size in sizes.items() if name.startswith("head."))
    return {"delta": sum(sizes.values()) - head, "head": head}


def render(facts: dict[str, Any]) -> RenderableType:
    """Makes the tables for people; client text in them is printable and truncated."""
    parts: list[RenderableType] = [_pairs(_lines(facts))]
    if facts.get("decision"):
        decided = ((printable(name, 40), printable(value, 200)) for name, value in _flat(facts["decision"], exact=True))
        parts += ["", console.title("How its answers are decided"), _pairs(decided)]
    if facts["training"]:
        rows = ((printable(name, 40), printable(value, 200)) for name, value in _flat(facts["training"]))
        parts += ["", console.title("How it was trained"), _pairs(rows)]
    return Group(*parts)


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    return console.filled(console.facts(), _first(list(rows)))


def _first(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    yield from islice(rows, MAX_ROWS_SHOWN)
    if len(rows) > MAX_ROWS_SHOWN:
        yield (f"and {len(rows) - MAX_ROWS_SHOWN} more",)


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    base, parameters, labels = facts["base"], facts["parameters"], facts["labels"]
    omitted = f" and {len(labels) - MAX_LABELS_SHOWN} more" if len(labels) > MAX_LABELS_SHOWN else ""
    return [
        ("base", f"{printable(base['name'])} ({printable(base['model_type'])})"),
        ("base digest", base["digest"]),
        ("task type", facts["task_type"]),
        ("labels", f"{len(labels)}: {', '.join(printable(x, 40) for x in labels[:MAX_LABELS_SHOWN])}{omitted}"),
        ("method", printable(facts["method"])),
        ("pooling", facts["pooling"]),
        ("max length", f"{facts['max_length']} tokens"),
        ("digest", facts["digest"]),
        ("file", f"{facts['bytes']:,} bytes, {facts['tensors']} tensors ({', '.join(facts['dtypes'])})"),
        ("parameters", f"{parameters['delta']:,} in the delta, {parameters['head']:,} in the head"),
        ("golden", f"{facts['golden']} sequences"),
        ("fingerprint", "of the texts that were trained on" if facts["fingerprint"] else "none"),
        ("reference", f"{counts['rows']:,} rows of {counts['split']}" if (counts := facts["reference"]) else "none"),
    ]


def _flat(value: dict[str, Any], before: str = "", exact: bool = False) -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        name = f"{before} {key}".strip().replace("_", " ")
        if isinstance(item, dict) and item.keys() == _RATE:
            estimate, low, high = (in_words(item[part], exact) for part in ("here", "low", "high"))
            yield name, estimate if item["low"] is None else f"{estimate} (new rows: {low} to {high})"
        elif isinstance(item, dict) and item:
            yield from _flat(item, name, exact)
        else:
            yield name, in_words(item, exact)


def in_words(value: Any, exact: bool) -> str:
    """Formats a value for a table; numbers with all digits if `exact`, else with four."""
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return "–"
        case float():
            return str(value) if exact else f"{value:.4g}"
        case str():
            return value
        case list() if not any(isinstance(item, dict | list) for item in value):
            return ", ".join(in_words(item, exact) for item in value)
        case _:
            return strict_json.encode(value)


def ranges(numbers: Iterable[int], dash: str = "–") -> str:
    """Formats ascending numbers as people write them: `0–3, 5` for 0, 1, 2, 3, 5."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}{dash}{last}" for first, last in spans)
