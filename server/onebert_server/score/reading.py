"""Reads a job's unfinished parts in order, one window at a time."""

from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import pyarrow

from onebert_server.score.job import Job
from onebert_server.score.rows import ParquetRows, RecordRows, Rows
from onebert_server.score.sources import PARQUET, Source
from onebert_store.command import console
from onebert_store.errors import InvalidData
from onebert_store.tables.binary.arrow import Parquet
from onebert_store.tables.file import File


@dataclass(frozen=True, eq=False)
class Window:
    """Rows of one part that are tokenized, sorted and computed together.

    Attributes:
        skipped: rows before this window in parts that were finished earlier.
        total: rows of the whole job; estimated by bytes while files do not tell.
    """

    part: str
    rows: Rows
    skipped: int
    total: int

    def __len__(self) -> int:
        return len(self.rows.texts)


# The rows of one file, in order: `row` counts rows taken or skipped, `share` is the share of the file read so far, and
# `notes` say how the file is read. `choose` precedes `take`, which returns at most so many rows: fewer at the end or if
# texts are long, and none after the end.
Stream: TypeAlias = ParquetRows | RecordRows


@contextmanager
def open_stream(source: Source, encoding: str | None) -> Iterator[Stream]:
    """The rows of a file; raises InvalidData, also while rows are taken, for an unreadable or mislabeled file."""
    try:
        with ExitStack() as opened:
            if source.name.lower().endswith(PARQUET):
                yield ParquetRows(Parquet(File(source.name, source.open), opened), source.name)
            else:
                yield RecordRows(source, encoding, opened)
    except (EOFError, OSError, pyarrow.ArrowException) as error:
        # pyarrow's messages may quote content or a path; report only the error's type.
        raise InvalidData(f"{source.name} is not readable ({type(error).__name__})") from None


def read_windows(job: Job, scored: Container[str]) -> Iterator[Window]:
    """The windows of all parts that are not in `scored`; a part is `part_rows` rows of one file, the last one fewer."""
    before = bytes_before = taken = 0
    size = sum(source.size for source in job.sources) or 1
    for file, source in enumerate(job.sources):
        with open_stream(source, job.encoding) as stream:
            for note in stream.notes:
                console.tell(f"note: {note}")
            stream.choose(job.chosen)
            for part, rows in _parts(stream, file, job, scored):
                at, share = before + stream.row, (bytes_before + stream.share * source.size) / size
                taken += len(rows.texts)
                yield Window(part, rows, at - taken, max(at, round(at / share)) if share else at)
            before, bytes_before = before + stream.row, bytes_before + source.size


def _parts(stream: Stream, file: int, job: Job, scored: Container[str]) -> Iterator[tuple[str, Rows]]:
    for number in count():
        # Names sort in the order of parts.
        part, end = f"part-{file:05d}-{number:05d}.parquet", (number + 1) * job.part_rows
        if part in scored:
            stream.skip(job.part_rows)
        while stream.row < end:
            rows = stream.take(min(end - stream.row, job.window_rows))
            if not rows.texts:
                return
            yield part, rows
