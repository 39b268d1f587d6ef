"""The facts of a version that answering needs, and that every answer names."""

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from onebert_store.file.decision import Decision
from onebert_store.file.manifest import PER_TOKEN, Pooling, TaskType
from onebert_store.registry.records import Payer, VersionRecord

Identity = tuple[str, str]
"""Reference and digest of a version: a registry that was put back gives its numbers to other versions."""


class Shadowing(NamedTuple):
    """A version that answers, then its shadows, which shall compute its questions as well; `payer` pays their work."""

    versions: tuple[Identity, ...]
    payer: Payer | None


@dataclass(frozen=True, eq=False)
class Facts:
    """A version without its tensors, golden logits and provenance.

    Attributes:
        base: digest of the base that answers.
        max_length: tokens that an input is cut to.
        decision: how answers are read from the logits; None means the task type's own way.
        normalized: whether its numbers are a vector, whose length sentence-transformers would make 1.
    """

    task: str
    version: int
    digest: str
    base: str
    task_type: TaskType
    labels: list[str]
    max_length: int
    pooling: Pooling
    decision: Decision | None = None
    normalized: bool = False

    @classmethod
    def from_record(cls, record: VersionRecord) -> "Facts":
        manifest = record.manifest
        # Interned, because many versions share the names.
        labels = [sys.intern(label) for label in manifest.labels]
        base = sys.intern(manifest.base.digest)
        reads = manifest.task_type, labels, manifest.max_length, manifest.pooling, manifest.decision
        return cls(record.task, record.version, record.digest, base, *reads)

    @cached_property
    def ref(self) -> str:
        """The reference that always means this version."""
        return f"{self.task}@{self.version}"

    @cached_property
    def identity(self) -> Identity:
        return self.ref, self.digest

    @cached_property
    def prepared(self) -> dict[str, Any]:
        """Values that answering prepares once for this version, by name."""
        return {}

    @cached_property
    def per_token(self) -> bool:
        """Whether there are logits for every token, [tokens, labels], and not for the sequence, [labels]."""
        return self.task_type in PER_TOKEN

    @cached_property
    def alike(self) -> object | None:
        """Equal for versions whose answers about whole texts are read from logits alike; None with logits per token."""
        if self.per_token:
            return None
        return (self.task_type, len(self.labels)) if self.decision is None else self

    @cached_property
    def label_bytes(self) -> int:
        """Bytes of all labels as JSON, with quotes and commas."""
        return sum(map(_json_bytes, self.labels))

    @cached_property
    def longest_label_bytes(self) -> int:
        """Bytes of the longest label as JSON, with quotes and a comma."""
        return max(map(_json_bytes, self.labels))


def _json_bytes(label: str) -> int:
    return len(label.encode()) + label.count('"') + label.count("\\") + len('"",')
