"""Reads what a command wrote as rows, by other readers than the product's."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .csv, .jsonl or .parquet file."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows
