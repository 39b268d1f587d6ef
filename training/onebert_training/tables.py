"""Reads labeled data from files, folders and the Hugging Face Hub into tables of cells."""

import csv
import gzip
import json
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pyarrow
import pyarrow.parquet

from onebert_store.errors import InvalidData

Table = Mapping[str, list[Any]]  # column name -> cells

SPLITS = ("train", "validation", "test")
MAX_CELL_CHARACTERS = 16 * 2**20

_SPLIT_FILES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


@dataclass(frozen=True)
class Source:
    """Tables by split, and what came with them.

    Attributes:
        name: file, folder or Hub name, without the path.
        label_names: column -> names by label index, where the source says so; the column "" is whichever
            holds the labels.
        single_file: the one table is whole and its split is the caller's to say; it stands under `train`.
    """

    name: str
    tables: Mapping[str, Table]
    task_type: str | None = None
    label_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metric: str | None = None
    single_file: bool = False


def read_source(source: str) -> Source:
    """Reads `hf:dataset[/config]`, a folder with one file per split, or one file.

    Raises:
        InvalidData: nothing there, not readable, or not a table.
    """
    if source.startswith("hf:"):
        return _read_hub(source.removeprefix("hf:"))
    path = Path(source)
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise InvalidData(
            f"there is no data at {source}, neither a file nor a folder; Hub data is written hf:dataset/config"
        )
    return Source(_stem(path), {"train": _read_file(path)}, single_file=True)


def _stem(path: Path) -> str:
    return path.name.removesuffix(_extension(path))


def _extension(path: Path) -> str:
    name = path.name.lower()
    return next((extension for extension in _READERS if name.endswith(extension)), "")


def _read_folder(folder: Path) -> Source:
    tables: dict[str, Table] = {}
    for split, stems in _SPLIT_FILES.items():
        files = [f for stem in stems for e in _READERS if (f := folder / f"{stem}{e}").is_file()]
        if len(files) > 1:
            raise InvalidData(f"the folder has more than one {split} file: {', '.join(f.name for f in files)}")
        if files:
            tables[split] = _read_file(files[0])
    if not tables:
        raise InvalidData(f"the folder has no file train, validation or test ending in {', '.join(_READERS)}")
    name = folder.resolve().name
    facts = folder / "labels.json"
    if not facts.is_file():
        return Source(name, tables)
    try:
        content = parse_json(facts.read_text(encoding="utf-8"))
        labels, metric = content.get("labels"), content.get("metric")
        return Source(
            name,
            tables,
            task_type=content.get("task_type"),
            label_names={"": tuple(map(str, labels))} if labels else {},
            metric=str(metric) if metric else None,
        )
    except (OSError, ValueError, AttributeError, TypeError):
        raise InvalidData("labels.json is not a JSON object with a list of labels") from None


def parse_json(text: str) -> Any:
    """Decodes JSON.

    Raises:
        ValueError: it is none, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_file(path: Path) -> Table:
    extension = _extension(path)
    if not extension:
        raise InvalidData(f"{path.name}: the name ends in one of {', '.join(_READERS)}")
    try:
        table = _READERS[extension](path)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        # gzip, pyarrow and csv messages may quote the content or the path; the kind of error is enough.
        kind = _KINDS.get(type(error), type(error).__name__)
        raise InvalidData(f"{path.name} is not readable ({kind})") from None
    if not any(len(cells) for cells in table.values()):
        raise InvalidData(f"{path.name} has no rows")
    return table


def _open_text(path: Path) -> TextIO:
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    stream: TextIO = opener(path, "rt", encoding="utf-8-sig", newline="")
    return stream


def _read_csv(path: Path) -> Table:
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    with _open_text(path) as stream:
        reader = csv.reader(stream, delimiter="\t" if ".tsv" in path.name.lower() else ",", strict=True)
        header = next(reader, [])
        if len(set(header)) != len(header):
            raise InvalidData(f"{path.name}: two columns have one name")
        table: dict[str, list[Any]] = {name: [] for name in header}
        for number, cells in enumerate(filter(None, reader), start=1):
            if len(cells) != len(header):
                raise InvalidData(f"{path.name} row {number}: {len(cells)} cells under {len(header)} columns")
            for column, cell in zip(table.values(), cells, strict=True):
                column.append(cell)
    return table


def _read_jsonl(path: Path) -> Table:
    rows = []
    with _open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise InvalidData(f"{path.name} line {number} is not a JSON object")
            rows.append(row)
    return _columns(rows)


def _columns(rows: Iterable[Mapping[str, Any]]) -> Table:
    """A missing key is an empty cell, so that a row error can name its row."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


_KINDS: Mapping[type[Exception], str] = {UnicodeDecodeError: "not UTF-8", csv.Error: "not CSV: a quote left open?"}


def _read_parquet(path: Path) -> Table:
    try:
        table: dict[str, list[Any]] = pyarrow.parquet.read_table(path).to_pydict()
    except pyarrow.ArrowException as error:
        raise InvalidData(f"{path.name} is not readable ({type(error).__name__})") from None
    return table


_READERS: Mapping[str, Callable[[Path], Table]] = {
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".tsv": _read_csv,
    ".tsv.gz": _read_csv,
    ".jsonl": _read_jsonl,
    ".jsonl.gz": _read_jsonl,
    ".parquet": _read_parquet,
}


def _read_hub(name: str) -> Source:
    """`owner/dataset`, `dataset/config` and `owner/dataset/config` are told apart by what the Hub has."""
    try:
        import datasets  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise InvalidData("hf: data needs the package datasets: pip install 'onebert[hub]'") from None
    # The retries of an unreachable Hub are not news for the user.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    parts = name.split("/")
    candidates: list[tuple[str, str | None]] = [(name, None)] if len(parts) < 3 else []
    if len(parts) > 1:
        candidates.append(("/".join(parts[:-1]), parts[-1]))
    loaded, problem = None, ""
    for dataset, config in candidates:
        try:
            loaded = datasets.load_dataset(dataset, config)
            break
        except (FileNotFoundError, ValueError) as error:  # no such data set or config; the next may be one
            problem = type(error).__name__
        except Exception as error:  # the Hub client raises many kinds, some with paths and URLs in the text
            problem = type(error).__name__
            break
    if loaded is None:
        raise InvalidData(f"the Hub data set cannot be loaded ({problem}); check its name, config and the network")
    tables = {}
    for split in SPLITS:
        found = next((key for key in sorted(loaded) if key.startswith(split)), None)
        if found is not None:
            tables[split] = loaded[found].to_dict()
    features = next(iter(loaded.values())).features
    names = {column: getattr(getattr(f, "feature", f), "names", None) for column, f in features.items()}
    return Source(name, tables, label_names={column: tuple(found) for column, found in names.items() if found})
