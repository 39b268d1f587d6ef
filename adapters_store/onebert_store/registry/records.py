"""The values that the registry returns: versions, aliases, tasks and changes."""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import NamedTuple

from onebert_store.file.manifest import Manifest
from onebert_store.registry.grants import UNLIMITED, Quotas
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.target import Target, alone, load_targets

# Earlier meanings that an alias remembers.
MAX_EARLIER = 32


# Slots save memory: a server holds one entry per version, up to a million.
@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One immutable version without its manifest; `size` is in bytes, `created_at` in UTC."""

    task: str
    version: int
    digest: str
    size: int
    created_at: datetime

    def with_manifest(self, manifest: Manifest) -> "VersionRecord":
        return VersionRecord(self.task, self.version, self.digest, self.size, self.created_at, manifest)


@dataclass(frozen=True, slots=True)
class VersionRecord(VersionEntry):
    """One immutable version with its manifest."""

    manifest: Manifest


class Payer(NamedTuple):
    """The principal that gave an alias its shadows, with its quotas of that moment, which bound their work."""

    name: str
    requests: float | None
    tokens: float | None

    @property
    def quotas(self) -> Quotas:
        return Quotas(requests=self.requests, tokens=self.tokens)


@dataclass(frozen=True, slots=True)
class Alias:
    """The meaning of an alias now, and earlier ones by the versions that were live, the oldest first.

    Versions of earlier meanings may be deleted by now.
    """

    target: Target
    earlier: tuple[Target, ...] = ()
    payer: Payer | None = None

    @property
    def version(self) -> int:
        return self.target.version

    def back(self, versions: Container[int]) -> Target | None:
        """The meaning that it rolls back to: the last one whose main version is another one, and is in `versions`.

        Shadows that are not are left out. If a share is not, or the present version has a part, it is the main version
        alone.
        """
        for at in reversed(self.earlier):
            if at.version in versions and at.version != self.version:
                whole = self.version not in at.numbers and all(number in versions for number, _ in at.shares)
                shadows = tuple(shadow for shadow in at.shadows if shadow.version in versions)
                return at._replace(shadows=shadows) if whole else alone(at.version)
        return None

    @property
    def ungated(self) -> set[int]:
        """Versions that answer now, and earlier ones older than the newest of these: they may answer without a gate."""
        now = {version for version, _ in self.target.shares}
        before = {version for target in self.earlier for version, _ in target.shares}
        return now | {version for version in before if version < max(now)}

    def goes_back(self, target: Target) -> bool:
        """Whether a move is a rollback: to a version that was live earlier, without a share for the present one."""
        shares = [number for number, _ in target.shares]
        return self.version not in shares and target.version in [earlier.version for earlier in self.earlier]

    def moved(self, target: Target, payer: Payer | None) -> "Alias":
        """The alias with a new target.

        A rollback forgets the meanings that follow the one to which it goes. New shadows and shares of the same version
        replace its meaning, and leave the earlier ones.
        """
        if self.goes_back(target):
            last = max(number for number, earlier in enumerate(self.earlier) if earlier.version == target.version)
            return Alias(target, self.earlier[:last], payer)
        if target.version == self.version:
            return Alias(target, self.earlier, payer)
        return Alias(target, (*self.earlier, self.target)[-MAX_EARLIER:], payer)


def alias_of(version: int, target: str | None, payer: str | None, earlier: str | None) -> Alias:
    """Makes an alias of its columns."""
    now = Target.loads(target) if target else alone(version)
    return Alias(now, load_targets(earlier), Payer(*json.loads(payer)) if payer else None)


@dataclass(frozen=True)
class TaskRecord:
    """A task with its version numbers, ascending, and its aliases."""

    name: str
    versions: tuple[int, ...]
    aliases: Mapping[str, Alias]


class Action(StrEnum):
    """The registry's kinds of change in the feed; extensions have more."""

    UPLOAD = "upload"
    PROMOTE = "promote"
    ROLL_BACK = "roll-back"
    DELETE_ALIAS = "delete-alias"
    DELETE_VERSION = "delete-version"
    DELETE_TASK = "delete-task"
    # Earlier releases renamed tasks.
    RENAME_TASK = "rename-task"
    SET_SAMPLES = "set-samples"
    DELETE_SAMPLES = "delete-samples"
    MINT_KEY = "mint-key"
    REVOKE_KEY = "revoke-key"


@dataclass(frozen=True)
class Actor:
    """The principal and request of a change, never a key; `until` is a deadline in seconds of `time.monotonic()`.

    `message` is why the change is made, for the audit trail.
    """

    principal: str
    request: str = ""
    until: float = inf
    quotas: Quotas = UNLIMITED
    message: str | None = None

    def payer(self, target: Target) -> Payer | None:
        """Returns the payer of the shadows of a target that this actor sets; None without quotas of rates."""
        rates = self.quotas.requests, self.quotas.tokens
        return Payer(self.principal, *rates) if target.shadows and self.quotas.of_rates else None


# Actor of the commands that work on a store directly.
CLI = Actor("cli")


@dataclass(frozen=True)
class Change:
    """One change of the registry, with the columns of its row; the action decides which fields are set.

    Attributes:
        seq: the change's number; numbers have no gaps and follow the order of the commits.
        at: time of the change, in UTC.
        action: an `Action`, or one of an extension or of a newer OneBERT.
        version: the version that was uploaded or deleted, or that the alias points at now.
        target: the new meaning of the alias as a whole; None for one version alone.
        alias: the alias that was moved or deleted; `live` for a task's first upload.
        before: the version that the alias pointed at before; None if the alias is new.
        key: name and id of the key that was made or revoked.
        name: the new name of a task that an earlier release renamed.
        before_target: the earlier meaning of the alias as a whole; None for one version alone.
        message: why the change was made.
        failed: the checks that failed, of an alias that was moved past those of its task; None of another change.
        entry: the uploaded version if it still exists; a VersionRecord unless its manifest is damaged.
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
    key: str | None
    name: str | None
    target: Target | None = None
    before_target: Target | None = None
    message: str | None = None
    failed: Sequence[str] | None = None
    entry: VersionEntry | None = None

    @property
    def past_gate(self) -> bool:
        """True if an alias was moved past the checks of its task."""
        return self.failed is not None

    @property
    def rolled_back(self) -> bool:
        """True if an alias went back to a version that was live before."""
        return self.action == Action.ROLL_BACK


@dataclass(frozen=True)
class Added:
    """The result of an upload: its version, whether the version is new, and the number of the latest change."""

    record: VersionRecord
    created: bool
    seq: int


class Place(NamedTuple):
    """A position in the feed: number (0: empty) and time (None: no row), which tells restored numbers apart."""

    seq: int
    at: datetime | None


@dataclass(frozen=True)
class Snapshot:
    """Every version (by task and number), alias (by task and name) and keeping at one moment, and the latest change."""

    last: Place
    entries: list[VersionEntry]
    aliases: Mapping[str, dict[str, Alias]]
    keepings: Mapping[str, Keeping]
