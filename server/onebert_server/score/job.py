"""A job: everything that its output depends on, and the folder that holds what is scored of it."""

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from onebert_server.score.columns import column_names
from onebert_server.score.sources import Source
from onebert_server.score.stream import ROW, Chosen
from onebert_server.score.tasks import ScoredTask
from onebert_store.disk import full_disk_is_typed, sync, write_whole
from onebert_store.errors import InvalidSettings, StoreLocked

ERROR = "error"
# Readers of folders of Parquet files pass over names that begin so.
JOB, DONE, LOCK = "_job.json", "_done.json", ".lock"
_FORMAT = 1
# Rows of a window: enough to make batches of texts of about one length; with many tasks or labels fewer, since a
# window's sequences and logits are in memory together.
_WINDOW_ROWS, _WINDOW_SEQUENCES, _WINDOW_LOGITS, _LEAST_ROWS = 4096, 2**18, 2**24, 16
# Bytes of a row group.
_GROUP_BYTES = 2**26


@dataclass(frozen=True, eq=False)
class Job:
    """What is scored, by what and how.

    Attributes:
        sources: the files.
        encoding: of text files without a byte order mark; None is UTF-8.
        chosen: the columns that are read.
        tasks: who answers.
        base: digest of the base.
        precision: what it computes in.
        all_scores: whether the score of every label is kept.
        part_rows: rows of a part.
        batch_tokens: tokens that a batch computes, at most.
    """

    sources: Sequence[Source]
    encoding: str | None
    chosen: Chosen
    tasks: Sequence[ScoredTask]
    base: str
    precision: str
    all_scores: bool
    part_rows: int
    batch_tokens: int

    def __post_init__(self) -> None:
        names = [*(self.chosen.ids or (ROW,)), ERROR]
        names += [name for task in self.tasks for name in column_names(task, self.all_scores)]
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise InvalidSettings(f"two columns would be called {twice[0]}")

    @property
    def window_rows(self) -> int:
        """Rows that are tokenized, sorted and computed at a time."""
        manifests = [task.delta.manifest for task in self.tasks]
        logits = sum(len(one.labels) * (one.max_length if one.per_token else 1) for one in manifests)
        most = min(_WINDOW_ROWS, _WINDOW_SEQUENCES // len(manifests), _WINDOW_LOGITS // logits)
        return max(most, _LEAST_ROWS)

    def facts(self) -> dict[str, Any]:
        """All of it as JSON: equal jobs write equal files."""
        return {
            "format": _FORMAT,
            # By name and not by path: the same files may be named from another folder, or be copied with their times.
            "inputs": [{"file": one.name, "size": one.size, "modified": one.modified} for one in self.sources],
            "encoding": self.encoding,
            "texts": [*self.chosen.texts],
            "ids": [*self.chosen.ids],
            "tasks": [
                {
                    "name": one.name,
                    "version": one.version,
                    "digest": one.delta.digest,
                    "labels": one.delta.manifest.labels,
                }
                for one in self.tasks
            ],
            "base": {"digest": self.base, "dtype": self.precision},
            "scores": self.all_scores,
            "part_rows": self.part_rows,
            "batch_tokens": self.batch_tokens,
        }


class PartFile:
    """One part while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self._held: list[pyarrow.Table] = []

    def add(self, table: pyarrow.Table) -> None:
        """Adds rows."""
        self._held.append(table)
        if sum(one.nbytes for one in self._held) >= _GROUP_BYTES:
            self._write()

    def close(self) -> None:
        """Writes what is left, and the end of the file."""
        if self._held:
            self._write()
        if self._writer is not None:
            self._writer.close()

    def _write(self) -> None:
        rows = pyarrow.concat_tables(self._held)
        self._held = []
        self._writer = self._writer or pyarrow.parquet.ParquetWriter(self._path, rows.schema, compression="zstd")
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))


class Output:
    """The folder of a job: a file of every part that is scored, whole or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scored = frozenset(path.name for path in folder.glob("part-*.parquet"))

    @contextmanager
    def part(self, name: str) -> Iterator[PartFile]:
        """A part, which is there when the block has ended without an error, also after a crash.

        Raises:
            StorageFull: the disk refused the write.
        """
        path, unfinished = self.folder / name, self.folder / f".{name}.unfinished"
        with full_disk_is_typed():
            file = PartFile(unfinished)
            try:
                yield file
                file.close()
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            sync(unfinished)
            unfinished.replace(path)
            sync(self.folder)

    def finish(self) -> Mapping[str, int]:
        """Counts what all parts hold, and says in the folder that none is missing."""
        counts = {"parts": 0, "rows": 0, "errors": 0}
        for path in sorted(self.folder.glob("part-*.parquet")):
            metadata = pyarrow.parquet.read_metadata(path)
            counts["parts"] += 1
            counts["rows"] += metadata.num_rows
            for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
                errors = group.column(metadata.num_columns - 1).statistics
                counts["errors"] += group.num_rows - errors.null_count
        write_whole(self.folder / DONE, _json(counts))
        return counts


@contextmanager
def open_output(folder: Path, job: Job) -> Iterator[Output]:
    """The folder of a job, made where there is none; no other process works on it meanwhile.

    Raises:
        InvalidSettings: the folder holds another job, or files of something else.
        StoreLocked: another process works on this job.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked("another process is scoring into this folder") from None
        path, facts = folder / JOB, _json(job.facts())
        if not path.exists():
            if others := [one.name for one in folder.iterdir() if not one.name.startswith(".")]:
                raise InvalidSettings(f"--out: {folder.name} has {others[0]} in it, and no {JOB}; take an empty folder")
            write_whole(path, facts)
            sync(folder.parent)
        _require_same(json.loads(path.read_bytes()), json.loads(facts), folder.name)
        yield Output(folder)


def _require_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: str) -> None:
    if others := [name for name in now if before.get(name) != now[name]]:
        raise InvalidSettings(
            f"--out: {folder} holds another job: {', '.join(others)} differ; see its {JOB} or take another folder"
        )


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
