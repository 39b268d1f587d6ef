"""What the registry answers: versions, aliases and tasks as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import NamedTuple

from onebert_store.file.manifest import Manifest


# With slots: a server holds an entry for each of a million versions.
@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One immutable version of a task without its manifest; `size` is in bytes, `created_at` in UTC."""

    task: str
    version: int
    digest: str
    size: int
    created_at: datetime

    def with_manifest(self, manifest: Manifest) -> "VersionRecord":
        """The same with its manifest."""
        return VersionRecord(self.task, self.version, self.digest, self.size, self.created_at, manifest)


@dataclass(frozen=True, slots=True)
class VersionRecord(VersionEntry):
    """One immutable version of a task with its manifest."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
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


class Action(StrEnum):
    """What a change did."""

    UPLOAD = "upload"
    PROMOTE = "promote"
    DELETE_ALIAS = "delete-alias"
    DELETE_VERSION = "delete-version"
    DELETE_TASK = "delete-task"
    RENAME_TASK = "rename-task"
    MINT_KEY = "mint-key"
    REVOKE_KEY = "revoke-key"


@dataclass(frozen=True)
class Actor:
    """Who makes a change, and by which request; never a key itself.

    Attributes:
        principal: who it is.
        request: the id of the request.
        until: when the change is given up where others hold the database, in seconds of `time.monotonic()`.
    """

    principal: str
    request: str = ""
    until: float = inf


CLI = Actor("cli")
"""Who works on the store of this machine by a command."""


@dataclass(frozen=True)
class Change:
    """One change of the registry; which fields there are depends on the action.

    Attributes:
        seq: its number; changes are numbered without a gap, in the order in which they were committed.
        at: when it was made, in UTC.
        action: what it did, an `Action`; a newer OneBERT beside this one may write others.
        task: of which task.
        version: the version that was uploaded or deleted, or that the alias points at since.
        alias: the alias that was moved or deleted; of an upload `live` where the version is a task's first.
        before: the version where the alias was before; None where there was no such alias.
        principal, request: who made it, and by which request.
        name: what a renamed task is called since.
        key: name and id of a key that was made or revoked.
        entry: of an upload, the version as long as it exists: with its manifest unless that is damaged.
    """

    seq: int
    at: datetime
    action: str
    task: str | None
    version: int | None
    alias: str | None
    before: int | None
    principal: str
    request: str
    entry: VersionEntry | None = None
    key: str | None = None
    name: str | None = None

    @property
    def rolled_back(self) -> bool:
        """Whether an alias was moved to an older version."""
        return self.action == Action.PROMOTE and (self.version or 0) < (self.before or 0)


@dataclass(frozen=True)
class Added:
    """What an upload came to: its version, whether that is new, and the number of the last change that it has seen."""

    record: VersionRecord
    created: bool
    seq: int


class Place(NamedTuple):
    """A place in the feed: a change by its number, and by its time.

    A database that lacked the last changes and was put in place of the one that had them (an older backup, a standby
    that takes over) uses their numbers again, for other changes; the time tells these apart.

    Attributes:
        seq: 0 where nothing was changed since changes are numbered.
        at: when the change was made; None where there is no such row.
    """

    seq: int
    at: datetime | None


@dataclass(frozen=True)
class Snapshot:
    """Every version and every alias at one moment.

    Attributes:
        last: the last change until then.
        entries: the versions, by task and number.
        aliases: by task and name.
    """

    last: Place
    entries: list[VersionEntry]
    aliases: Mapping[str, dict[str, Alias]]
