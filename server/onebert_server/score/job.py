"""A job: everything that its output depends on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onebert_encoder.answering.windows import window_of
from onebert_server.score.columns import column_names
from onebert_server.score.sources import Source
from onebert_server.score.stream import ROW, Chosen
from onebert_server.score.tasks import ScoredTask
from onebert_store.errors import InvalidSettings

ERROR = "error"
_FORMAT = 1
# Rows of a window: enough to make batches of texts of about one length; with many tasks or labels fewer, since a
# window's sequences and logits are in memory together.
_WINDOW_ROWS, _WINDOW_SEQUENCES, _WINDOW_LOGITS, _LEAST_ROWS = 4096, 2**18, 2**24, 16

# Windows that a row is reckoned with where a task reads by windows.
_ROW_WINDOWS = 16


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
        # A row may be as many sequences as it has windows, which nobody knows before it is read.
        sequences = [_ROW_WINDOWS if window_of(one, one.max_length) else 1 for one in manifests]
        tokens = [
            count * (one.max_length if one.per_token else 1) for one, count in zip(manifests, sequences, strict=True)
        ]
        logits = sum(len(one.labels) * count for one, count in zip(manifests, tokens, strict=True))
        most = min(_WINDOW_ROWS, _WINDOW_SEQUENCES // sum(sequences), _WINDOW_LOGITS // logits)
        return max(most, _LEAST_ROWS)

    def facts(self) -> dict[str, Any]:
        """All of it as JSON: equal jobs write equal files."""
        return {
            "format": _FORMAT,
            # By name and not by path: the same files may be named from another folder, or be copied with their times.
            "inputs": [
                {"file": one.name, "size": one.size, "modified": one.modified} | one.chosen for one in self.sources
            ],
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
