"""Files of labeled rows by the endings of their names, and what a training reads of them."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from onebert_training.data.dataset import Dataset, load_dataset
from onebert_training.data.options import DataOptions

ROWS = [(f"text number {i}", "spam" if i % 4 == 0 else "ham") for i in range(40)]


def lines(rows: Sequence[Sequence[Any]], header: Sequence[str] = ("text", "label"), separator: str = ",") -> str:
    """The text of a CSV file; cells that are no texts are JSON."""
    out = io.StringIO()
    plain = [[cell if isinstance(cell, str) else json.dumps(cell) for cell in row] for row in rows]
    csv.writer(out, delimiter=separator, lineterminator="\n").writerows([header, *plain])
    return out.getvalue()


def jsonl(rows: Sequence[Any], header: Sequence[str] = ("text", "label")) -> str:
    """The text of a JSONL file, of objects or of cells under a header."""
    objects = [row if isinstance(row, dict) else dict(zip(header, row, strict=True)) for row in rows]
    return "".join(json.dumps(row) + "\n" for row in objects)


def parquet(rows: Sequence[Sequence[Any]], header: Sequence[str] = ("text", "label")) -> bytes:
    out = io.BytesIO()
    columns = zip(header, zip(*rows, strict=True), strict=True)
    pyarrow.parquet.write_table(pyarrow.table({name: list(cells) for name, cells in columns}), out)
    return out.getvalue()


WRITERS = {"csv": lines, "jsonl": jsonl, "parquet": parquet}


def write(folder: Path, files: Mapping[str, Any]) -> str:
    """Writes contents by name: bytes, text, the rows of a table, or an object; the address of the one file, or all."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        written = WRITERS[name.rpartition(".")[2]](content) if isinstance(content, list) else content
        written = json.dumps(written) if isinstance(written, dict) else written
        (folder / name).write_bytes(written.encode() if isinstance(written, str) else written)
    return str(folder / next(iter(files)) if len(files) == 1 else folder)


def load(folder: Path, files: Mapping[str, Any], keep_few: bool = False, **options: Any) -> Dataset:
    return load_dataset(write(folder, files), DataOptions(**options), keep_few=keep_few)
