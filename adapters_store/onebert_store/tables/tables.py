"""Finds a data set's files, in a folder or on the Hugging Face Hub, and reads them as tables by split."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from onebert_store.errors import InvalidData
from onebert_store.tables.binary.arrow import label_names_of
from onebert_store.tables.file import File, file_at
from onebert_store.tables.hub import read_hub
from onebert_store.tables.records import READERS, Records, extension_of, open_records
from onebert_store.tables.table import Place, Table, describe_bad_rows, join_places, places_in
from onebert_store.tables.text.json_rows import parse_json

# Limits of empty cells: per existing cell, and in any case. Otherwise a few bytes of a file could become any number of
# cells.
_EMPTY_EACH, _EMPTY = 64, 2**24


class Fault(NamedTuple):
    """A bad row: its place, and the reason."""

    place: Place
    reason: str


@dataclass
class Faults:
    """The bad rows of files, and in `broken` the reasons why files cannot be read to their end."""

    rows: list[Fault] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def read_file(file: Path | File, encoding: str | None = None, faults: Faults | None = None) -> Table:
    """Reads a file by its ending; `encoding` None finds it. `faults` collects bad rows; None rejects them."""
    origin = file if isinstance(file, File) else file_at(file)
    with open_records(origin, encoding) as records:
        columns: dict[str, list[Any]] = {name: [] for name in records.names or ()}
        numbers, bad = list[int](), dict[str, list[int]]()
        try:
            _fill(columns, numbers, bad, records)
        except InvalidData as error:
            if faults is None or not (numbers or bad):
                raise
            faults.broken.append(error.detail)
    places_of = partial(places_in, origin.name, records.unit)
    if faults is None and bad:
        raise InvalidData(describe_bad_rows(bad, lambda rows: places_of(rows).named(range(len(rows)))))
    if faults is not None:
        faults.rows += [
            Fault(Place(origin.name, records.unit, row), reason) for reason, rows in bad.items() for row in rows
        ]
    if not numbers:
        raise InvalidData(f"{origin.name} has no rows" + (" that can be read" if bad else ""))
    separated = records.delimiter and f"{records.delimiter} between columns"
    kind = ", ".join(filter(None, (records.name, records.encoding, separated)))
    return Table(columns, origin.name, places_of(numbers), records.label_names, records.notes, (kind,))


def _fill(columns: dict[str, list[Any]], numbers: list[int], bad: dict[str, list[int]], records: Records) -> None:
    empty = filled = 0
    # An empty cell of a CSV or a sheet is an empty text; JSON and Parquet leave it missing.
    blank = "" if records.names is not None and records.schema is None else None
    for number, cells, fault in records:
        if fault:
            bad.setdefault(fault, []).append(number)
            continue
        if not columns.keys() >= cells.keys():
            # A missing key becomes an empty cell, so that an error can name its row.
            missing = [name for name in cells if name not in columns]
            columns.update({name: [None] * len(numbers) for name in missing})
            empty += len(missing) * len(numbers)
        for name, column in columns.items():
            cell = cells.get(name)
            column.append(blank if cell is None else cell)
        numbers.append(number)
        filled += len(cells)
        empty += len(columns) - len(cells)
        if empty > max(_EMPTY, filled * _EMPTY_EACH):
            raise InvalidData(f"{records.name} has {len(columns):,} columns of which nearly all cells are empty")


def join_tables(tables: Sequence[Table], origin: str) -> Table:
    """Concatenates tables; a column that a table lacks is empty in its rows."""
    if len(tables) == 1:
        return tables[0]
    names = dict.fromkeys(name for table in tables for name in table)
    columns = {
        name: [cell for table in tables for cell in (table[name] if name in table else [None] * table.rows)]
        for name in names
    }
    label_names = {column: names_of for table in tables for column, names_of in table.label_names.items()}
    notes = [note for table in tables for note in table.notes]
    kinds = [kind for table in tables for kind in table.kinds]
    return Table(columns, origin, join_places([table.places for table in tables]), label_names, notes, kinds)


SPLITS = ("train", "validation", "test")

_SPLIT_FILES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
# The Hub's names for parts of a split; older names end with a digest of the content.
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?")


@dataclass(frozen=True)
class Source:
    """Tables by split, and facts about them.

    Attributes:
        label_names: column -> names by label index, if the source has them; the key "" stands for any label column.
        single_file: True for one table that is not split yet; it stands under `train`.
    """

    name: str
    tables: Mapping[str, Table]
    task_type: str | None = None
    label_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metric: str | None = None
    single_file: bool = False


def read_source(
    source: str, encoding: str | None = None, faults: Faults | None = None, sheet: str | None = None
) -> Source:
    """Reads `hf:dataset[/config]`, a folder, or one file.

    A folder has one file per split, or several named as on the Hub (`train-00000-of-00002.parquet`), directly or in its
    folder `data`; or a folder of files per split; or it was written by Hugging Face's `save_to_disk`.

    Args:
        encoding: of text files without a byte order mark; None finds it.
        faults: collects bad rows, which are left out; None rejects them.
        sheet: of a workbook; None is the first.
    """
    if source.startswith("hf:"):
        return joined_source(source.removeprefix("hf:"), read_hub(source.removeprefix("hf:"), SPLITS))
    path = Path(source)

    def read(file: Path) -> Table:
        return read_file(file_at(file, sheet), encoding, faults)

    if path.is_dir():
        return _read_folder(path, read)
    if not path.is_file():
        raise InvalidData(
            f"there is no data at {source}, neither a file nor a folder; Hub data is written hf:dataset/config"
        )
    return joined_source(_stem(path), {"train": read(path)}, single_file=True)


def choose_split(read: Source, split: str | None) -> str:
    """Returns the split to measure on: `split`, else test, else validation; a single file has only one."""
    name = "train" if read.single_file else split or next(each for each in reversed(SPLITS) if each in read.tables)
    if name not in read.tables:
        raise InvalidData(f"the data has no {name} split; it has {', '.join(read.tables)}")
    return name


def joined_source(name: str, tables: Mapping[str, Table], single_file: bool = False) -> Source:
    """Makes a Source of tables, with their label names."""
    label_names = {column: names_of for table in tables.values() for column, names_of in table.label_names.items()}
    return Source(name, tables, label_names=label_names, single_file=single_file)


def _stem(path: Path) -> str:
    return path.name[: len(path.name) - len(extension_of(path.name))]


def _read_folder(folder: Path, read: Callable[[Path], Table]) -> Source:
    name = folder.resolve().name
    if (folder / "state.json").is_file():
        return joined_source(name, {"train": _read_saved(folder, read)}, single_file=True)
    tables: dict[str, Table] = {}
    for split, stems in _SPLIT_FILES.items():
        saved = [folder / stem for stem in stems if (folder / stem / "state.json").is_file()]
        files = _files(folder, split) or _files(folder / "data", split) or _files_of(folder, stems)
        if saved:
            tables[split] = _read_saved(saved[0], read)
        elif files:
            tables[split] = join_tables([read(file) for file in files], f"{split} files")
    if not tables:
        raise InvalidData(f"the folder has no file train, validation or test ending in {', '.join(READERS)}")
    source = joined_source(name, tables)
    return _with_facts(source, folder / "labels.json") if (folder / "labels.json").is_file() else source


def _with_facts(read: Source, facts: Path) -> Source:
    try:
        content = parse_json(facts.read_text(encoding="utf-8"))
        labels, metric = content.get("labels"), content.get("metric")
        return Source(
            read.name,
            read.tables,
            task_type=content.get("task_type"),
            label_names={"": tuple(map(str, labels))} if labels else read.label_names,
            metric=str(metric) if metric else None,
        )
    except (OSError, ValueError, AttributeError, TypeError):
        raise InvalidData("labels.json is not a JSON object with a list of labels") from None


def _files(folder: Path, split: str) -> list[Path]:
    """Returns a split's file, or its shards in order; raises InvalidData if two files fit or shards are missing."""
    stems = _SPLIT_FILES[split]
    existing = [file for file in sorted(folder.iterdir()) if file.is_file()] if folder.is_dir() else []
    files = [file for file in existing if extension_of(file.name) and _stem(file) in stems]
    shards: dict[tuple[str, str], dict[str, Path]] = {}
    for file in existing:
        shard = _SHARD.fullmatch(_stem(file)) if extension_of(file.name) else None
        if shard and shard[1] in stems:
            parts = shards.setdefault((shard[1] + extension_of(file.name), shard[3]), {})
            if (other := parts.setdefault(shard[2], file)) != file:
                raise InvalidData(
                    f"the folder has two files for one part of its {split} split: {other.name}, {file.name}"
                )
    if len(files) + len(shards) > 1:
        names = ", ".join(file.name for file in [*files, *(min(parts.values()) for parts in shards.values())])
        raise InvalidData(f"the folder has more than one {split} file: {names}")
    for (_, count), parts in shards.items():
        if len(parts) != int(count):
            raise InvalidData(f"the folder has {len(parts)} of the {int(count)} files of its {split} split")
        return [parts[number] for number in sorted(parts)]
    return files


def _files_of(folder: Path, stems: Sequence[str]) -> list[Path]:
    inside = [file for stem in stems if (folder / stem).is_dir() for file in sorted((folder / stem).iterdir())]
    return [file for file in inside if file.is_file() and extension_of(file.name)]


def _read_saved(folder: Path, read: Callable[[Path], Table]) -> Table:
    files = [file for pattern in ("data-*.arrow", "dataset.arrow") for file in sorted(folder.glob(pattern))]
    if not files:
        raise InvalidData(f"{folder.name} has a state.json and no file data-….arrow")
    table = join_tables([read(file) for file in files], folder.name)
    try:
        info = parse_json((folder / "dataset_info.json").read_text(encoding="utf-8"))
        names = label_names_of(info["features"])
    except (OSError, ValueError, TypeError, KeyError):
        names = {}
    return table.with_label_names(names or table.label_names)
