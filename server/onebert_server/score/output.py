"""A job's output files: one per part, written atomically, and a description of the job."""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain
from typing import Any, TypeAlias

import pyarrow
import pyarrow.parquet

from onebert_server.score.job import Job
from onebert_server.score.places import Place, place_at
from onebert_server.score.reading import Window
from onebert_store.errors import InvalidSettings, StoreCorrupt

# Readers of Parquet folders skip names that begin with an underscore.
JOB, DONE = "_job.json", "_done.json"
# Bytes per row group.
_GROUP_BYTES = 2**26


# The windows of a part with their answers, by the part's name.
Parts: TypeAlias = Generator[tuple[str, Iterable[tuple[Window, pyarrow.Table]]], None, None]


class Output:
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


def _groups(
    windows: Iterable[tuple[Window, pyarrow.Table]], report: Callable[[Window], None]
) -> Iterator[pyarrow.Table]:
    """The rows of a part's row groups."""
    held, size = [], 0
    for window, rows in windows:
        held.append(rows)
        size += rows.nbytes
        if size >= _GROUP_BYTES:
            yield pyarrow.concat_tables(held)
            held, size = [], 0
        report(window)
    if held:
        yield pyarrow.concat_tables(held)


@contextmanager
def open_output(where: str, job: Job) -> Iterator[Output]:
    """Opens the output of a job, new or resumed.

    Raises:
        InvalidSettings: the address is invalid, or holds another job's files or unrelated ones.
        StoreLocked: another process works on this job.
    """
    place = place_at(where)
    with place.held():
        facts = _json(job.facts())
        if place.read(JOB) is None:
            if others := [name for name in place.names() if not name.startswith(".")]:
                raise InvalidSettings(f"--out: {place.name} has {others[0]} in it, and no {JOB}; take an empty folder")
            place.keep(JOB, facts)
        # In a bucket, another process may have created the file first.
        _require_same(place.read(JOB) or facts, facts, place.name)
        yield Output(place)


def _require_same(before: bytes, facts: bytes, folder: str) -> None:
    try:
        told, now = json.loads(before), json.loads(facts)
    except ValueError:
        raise InvalidSettings(f"--out: the {JOB} of {folder} is damaged; take another folder") from None
    if others := [name for name in now if not isinstance(told, dict) or told.get(name) != now[name]]:
        raise InvalidSettings(
            f"--out: {folder} holds another job: {', '.join(others)} differ; see its {JOB} or take another folder"
        )


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
