"""What the registry answers: versions, aliases and tasks as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from onebert_store.file.manifest import Manifest


@dataclass(frozen=True)
class VersionEntry:
    """One immutable version of a task without its manifest; `size` is in bytes, `created_at` in UTC."""

    task: str
    version: int
    digest: str
    size: int
    created_at: datetime


@dataclass(frozen=True)
class VersionRecord(VersionEntry):
    """One immutable version of a task with its manifest."""

    manifest: Manifest


@dataclass(frozen=True)
class Alias:
    """Where an alias points, and where it pointed before; the version before may be deleted by now."""

    version: int
    previous: int | None = None


@dataclass(frozen=True)
class TaskRecord:
    """A task with its version numbers, ascending, and its aliases."""

    name: str
    versions: tuple[int, ...]
    aliases: Mapping[str, Alias]
