"""A job's output: a folder with a file for each part and a description of the job, or one file."""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow
import pyarrow.parquet

from onebert_server.score.job import Job
from onebert_server.score.places import Place, place_at
from onebert_server.score.reading import Window
from onebert_server.score.rows import ERROR
from onebert_store.blobs.address import BUCKET
from onebert_store.disk import check_writable, written_whole
from onebert_store.errors import InvalidData, InvalidSettings, StoreCorrupt
from onebert_store.tables.binary.arrow import BAD_CELL, rows_of
from onebert_store.tables.writers import WRITERS

# Readers of Parquet folders skip names that begin with an underscore.
JOB, DONE = "_job.json", "_done.json"
# Bytes per row group.
_GROUP_BYTES = 2**26


# The windows of a part with their answers, by the part's name.
Parts: TypeAlias = Generator[tuple[str, Iterable[tuple[Window, pyarrow.Table]]], None, None]
# A job, and the function that scores its parts except the finished ones, by their names.
Scores: TypeAlias = tuple[Job, Callable[[frozenset[str]], Parts]]
# Makes the job of a scorer's `computing`.
MakeJob: TypeAlias = Callable[..., Job]


class FolderOutput:
    """The files of a job; `scored` holds the names of the parts that existed when it was opened."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.scored = frozenset(self._parts())

    def write(self, parts: Parts, report: Callable[[Window], None]) -> None:
        """Writes parts and calls `report` for every window; a file appears, durably, when its part is complete."""
        with closing(parts):
            for name, windows in parts:
                groups = _groups(windows, report)
                first = next(groups)
                with (
                    self._place.part(name) as sink,
                    pyarrow.parquet.ParquetWriter(sink, first.schema, compression="zstd") as writer,
                ):
                    for rows in chain([first], groups):
                        writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def finish(self) -> Mapping[str, int]:
        """Records the rows of all parts, which marks the job as complete; StoreCorrupt names a damaged part."""
        counts = {"parts": 0, "rows": 0, "errors": 0}
        for name in self._parts():
            try:
                metadata = self._place.metadata(name)
            except pyarrow.ArrowException:
                raise StoreCorrupt(f"{name} is damaged; remove it, and the same command makes it again") from None
            counts["parts"] += 1
            counts["rows"] += metadata.num_rows
            for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
                errors = group.column(metadata.num_columns - 1).statistics
                counts["errors"] += group.num_rows - errors.null_count
        self._place.keep(DONE, _json(counts))
        return counts

    def _parts(self) -> list[str]:
        return sorted(name for name in self._place.names() if name.startswith("part-") and name.endswith(".parquet"))


class FileOutput:
    """One CSV, JSON lines or Parquet file, which appears when all rows are scored; it is never resumed."""

    scored: frozenset[str] = frozenset()

    def __init__(self, path: Path, job: Job) -> None:
        self._path, self._columns = path, job.columns
        self._counts = {"rows": 0, "errors": 0}

    def write(self, parts: Parts, report: Callable[[Window], None]) -> None:
        """Writes the rows of all parts, and calls `report` for every window."""
        with closing(parts), written_whole(self._path) as file:
            make, writer = WRITERS[self._path.suffix.lower()], None
            for window, table in (answered for _, windows in parts for answered in windows):
                # A Parquet file has the types of the first window.
                writer = writer or make(file, self._columns, {column.name: column.type for column in table.schema})
                for row in rows_of(iter(table.to_batches())):
                    if row is None:
                        raise InvalidData(f"--out: {BAD_CELL} in a column of --keep; a folder takes such cells")
                    writer.add(row)
                    self._counts["errors"] += row[ERROR] is not None
                self._counts["rows"] += len(window)
                report(window)
            (writer or make(file, self._columns, {})).end()

    def finish(self) -> Mapping[str, int]:
        """The counts of rows, and of those without an answer."""
        return self._counts


Output: TypeAlias = FolderOutput | FileOutput


def _groups(
    windows: Iterable[tuple[Window, pyarrow.Table]], report: Callable[[Window], None]
) -> Iterator[pyarrow.Table]:
    tables, size = [], 0
    for window, rows in windows:
        tables.append(rows)
        size += rows.nbytes
        if size >= _GROUP_BYTES:
            yield pyarrow.concat_tables(tables)
            tables, size = [], 0
        report(window)
    if tables:
        yield pyarrow.concat_tables(tables)


@contextmanager
def open_output(where: str, job: Job) -> Iterator[Output]:
    """Opens the output of a job: a file by its ending, else a folder or a bucket's prefix, new or resumed.

    Raises:
        InvalidSettings: the address is invalid, is an input, or holds another job's files or unrelated ones.
        StoreLocked: another process works on this job.
    """
    path = Path(where)
    if path.suffix.lower() in WRITERS and not where.startswith(BUCKET) and not path.is_dir():
        check_writable("--out", path, [Path(source.address) for source in job.sources])
        yield FileOutput(path, job)
        return
    place = place_at(where)
    with place.locked():
        facts = _json(job.facts())
        if place.read(JOB) is None:
            if names := [name for name in place.names() if not name.startswith(".")]:
                raise InvalidSettings(f"--out: {place.name} has {names[0]} in it, and no {JOB}; take an empty folder")
            place.keep(JOB, facts)
        # In a bucket, another process may have created the file first.
        _require_same(place.read(JOB) or facts, facts, place.name)
        yield FolderOutput(place)


def _require_same(before: bytes, facts: bytes, folder: str) -> None:
    try:
        written, now = json.loads(before), json.loads(facts)
    except ValueError:
        raise InvalidSettings(f"--out: the {JOB} of {folder} is damaged; take another folder") from None
    if differing := [name for name in now if not isinstance(written, dict) or written.get(name) != now[name]]:
        raise InvalidSettings(
            f"--out: {folder} holds another job: {', '.join(differing)} differ; see its {JOB} or take another folder"
        )


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
