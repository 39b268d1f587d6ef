"""Reads one file into a table: CSV and TSV as spreadsheets write them, JSON lines, Parquet, Arrow."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from onebert_store.errors import InvalidData
from onebert_store.tables.lines import CsvRows, check_encoding, json_rows, open_text, parse_json
from onebert_store.tables.table import Table


def read_file(path: Path, encoding: str | None = None) -> Table:
    """Reads a file by the ending of its name.

    Args:
        path: the file.
        encoding: of CSV and JSON lines; None is UTF-8. A byte order mark in the file takes precedence.

    Raises:
        InvalidData: the file is not readable, or not a table; the message names the line where there is one.
        InvalidSettings: there is no such encoding.
    """
    if encoding is not None:
        check_encoding(encoding)
    extension = extension_of(path)
    if not extension:
        raise InvalidData(f"{path.name}: the name ends in one of {', '.join(READERS)}")
    try:
        table = READERS[extension](path, encoding or "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidData(_undecodable(path, error, encoding)) from None
    except (OSError, EOFError, UnicodeError, zlib.error, pyarrow.ArrowException) as error:
        # Messages of gzip and pyarrow may quote the content or the path, so that only the kind of error is told.
        raise InvalidData(f"{path.name} is not readable ({type(error).__name__})") from None
    if not table.rows:
        raise InvalidData(f"{path.name} has no rows")
    return table


def extension_of(path: Path) -> str:
    """The ending of a file's name that says how it is read; empty where the name has no known ending."""
    name = path.name.lower()
    return next((extension for extension in READERS if name.endswith(extension)), "")


def join_tables(tables: list[Table], origin: str) -> Table:
    """The rows of several tables one after the other; a column that a table lacks is empty in that table's rows."""
    if len(tables) == 1:
        return tables[0]
    names = dict.fromkeys(name for table in tables for name in table)
    columns = {
        name: [cell for table in tables for cell in (table[name] if name in table else [None] * table.rows)]
        for name in names
    }
    label_names = {column: found for table in tables for column, found in table.label_names.items()}
    return Table(columns, origin, label_names=label_names)


def label_names_of(features: Any) -> dict[str, tuple[str, ...]]:
    """The label names, by label index, of every column for which a Hugging Face data set's features list names.

    Args:
        features: as decoded from JSON: column -> `{"names": […], "_type": "ClassLabel"}`, or a list of such.
    """
    found = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else None
        names = inner.get("names") if isinstance(inner, dict) else None
        if isinstance(names, list) and names:
            found[str(column)] = tuple(map(str, names))
    return found


def _undecodable(path: Path, error: UnicodeDecodeError, encoding: str | None) -> str:
    if encoding is not None or error.encoding != "utf-8":
        return f"{path.name} is not readable as {encoding or error.encoding}"
    # The error counts bytes from wherever the last read began.
    with _open_bytes(path) as stream:
        line = next((number for number, line in enumerate(stream, start=1) if not _is_utf8(line)), 1)
    return f"{path.name} line {line} is not readable as UTF-8; say what it is with --encoding, such as cp1252 (Windows)"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _open_bytes(path: Path) -> Any:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def _read_csv(path: Path, encoding: str) -> Table:
    with open_text(path.open("rb"), path.name, encoding) as stream:
        rows = CsvRows(stream, path.name)
        table: dict[str, list[Any]] = {name: [] for name in rows.header}
        lines = []
        for line, cells in rows:
            if len(cells) != len(table):
                raise InvalidData(f"{path.name} line {line}: {len(cells)} cells under {len(table)} columns")
            lines.append(line)
            for column, cell in zip(table.values(), cells, strict=True):
                column.append(cell)
    return Table(table, path.name, lines, "line")


def _read_jsonl(path: Path, encoding: str) -> Table:
    rows, lines = [], []
    with open_text(path.open("rb"), path.name, encoding) as stream:
        for number, row in json_rows(stream):
            if row is None:
                raise InvalidData(f"{path.name} line {number} is not a JSON object")
            rows.append(row)
            lines.append(number)
    return Table(_columns(rows), path.name, lines, "line")


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A missing key is an empty cell, so that a row error can name its row."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_parquet(path: Path, encoding: str) -> Table:
    table = pyarrow.parquet.read_table(path)
    names = {}
    with suppress(KeyError, ValueError, TypeError):  # only files of Hugging Face's library have names
        names = label_names_of(parse_json((table.schema.metadata or {})[b"huggingface"].decode())["info"]["features"])
    return Table(table.to_pydict(), path.name, label_names=names)


def _read_arrow(path: Path, encoding: str) -> Table:
    with pyarrow.OSFile(str(path)) as stream:
        return Table(pyarrow.ipc.open_stream(stream).read_all().to_pydict(), path.name)


READERS: Mapping[str, Callable[[Path, str], Table]] = {
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".tsv": _read_csv,
    ".tsv.gz": _read_csv,
    ".jsonl": _read_jsonl,
    ".jsonl.gz": _read_jsonl,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
