"""A job: everything that determines its output."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onebert_encoder.answering.windows import window_of
from onebert_server.score.columns import column_names
from onebert_server.score.rows import ERROR, ROW, ChosenColumns
from onebert_server.score.sources import Source
from onebert_server.score.tasks import ScoredTask
from onebert_store.errors import InvalidSettings

_FORMAT = 1
# Rows per window: enough to fill batches, and not more, since the first window is read and tokenized before anything is
# computed; fewer with many tasks or labels, since a window's sequences and logits are in memory together.
_WINDOW_ROWS, _WINDOW_SEQUENCES, _WINDOW_LOGITS, _LEAST_ROWS = 1024, 2**18, 2**24, 16

# Estimated windows per row, for tasks that read texts in windows.
_ROW_WINDOWS = 16


@dataclass(frozen=True)
class Computation:
    """Settings of the computation: the base's digest, its dtype, and the tokens of a batch."""

    base: str
    precision: str
    batch_tokens: int

    def facts(self) -> dict[str, Any]:
        return {"base": {"digest": self.base, "dtype": self.precision}, "batch_tokens": self.batch_tokens}


@dataclass(frozen=True, eq=False)
class Job:
    """The inputs, the tasks and the settings of a scoring run; `computing` is None if a server computes."""

    sources: Sequence[Source]
    encoding: str | None
    chosen: ChosenColumns
    tasks: Sequence[ScoredTask]
    all_scores: bool
    part_rows: int
    computing: Computation | None

    def __post_init__(self) -> None:
        names = self.columns
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise InvalidSettings(f"two columns would be called {twice[0]}")

    @property
    def columns(self) -> list[str]:
        """The names of the output's columns, in order."""
        answers = [name for task in self.tasks for name in column_names(task, self.all_scores)]
        return [*(self.chosen.ids or (ROW,)), *answers, ERROR]

    @property
    def window_rows(self) -> int:
        """Rows that are tokenized, sorted and computed together."""
        manifests = [task.manifest for task in self.tasks]
        # A row has one sequence per window; their number is unknown until the row is read.
        sequences = [_ROW_WINDOWS if window_of(manifest, manifest.max_length) else 1 for manifest in manifests]
        tokens = [count * (m.max_length if m.per_token else 1) for m, count in zip(manifests, sequences, strict=True)]
        logits = sum(len(manifest.labels) * count for manifest, count in zip(manifests, tokens, strict=True))
        rows = min(_WINDOW_ROWS, _WINDOW_SEQUENCES // sum(sequences), _WINDOW_LOGITS // logits)
        return max(rows, _LEAST_ROWS)

    def facts(self) -> dict[str, Any]:
        """The job as JSON; equal jobs write equal files."""
        return {
            "format": _FORMAT,
            # Names, not paths: the same files may be named from another folder, or be copied with their times.
            "inputs": [
                {"file": source.name, "size": source.size, "modified": source.modified}
                | ({} if source.sheet is None else {"sheet": source.sheet})
                for source in self.sources
            ],
            "encoding": self.encoding,
            "texts": [*self.chosen.texts],
            "ids": [*self.chosen.ids],
            "tasks": [
                {"name": task.name, "version": task.version, "digest": task.digest, "labels": task.manifest.labels}
                for task in self.tasks
            ],
            "scores": self.all_scores,
            "part_rows": self.part_rows,
            **({"computed_by": "server"} if self.computing is None else self.computing.facts()),
        }
