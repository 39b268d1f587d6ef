"""A version in memory: how far it is, and what answering needs of it; a task with its versions and aliases."""

import sys
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from onebert_server.versions.facts import Facts
from onebert_store.errors import AliasNotFound, VersionNotFound
from onebert_store.file.strict_json import shown
from onebert_store.registry.records import Alias, VersionEntry, VersionRecord


class State(StrEnum):
    """How far a version is; docs/architecture.md draws the transitions."""

    REGISTERED = "registered"
    LOADING = "loading"
    RESIDENT = "resident"
    EVICTED = "evicted"
    UNAVAILABLE = "unavailable"


@dataclass(eq=False, slots=True)
class Version:
    """One registered version; once it is published only `Directory` changes it, under its lock.

    Whoever has pinned it may read it without the lock. It is published with its entry, and with its row where there is
    one; all else comes later.

    Attributes:
        entry: what the registry says of it, without its manifest.
        known_facts: what answering needs of its manifest; None where neither the registry nor the file could say it,
            which lasts until the file can be read.
        method: how it was trained; known, or not, as `known_facts` is.
        state: how far it is.
        held_slot: its row in the bank while it is resident.
        row_bytes: what its row takes on the device; 0 until that was seen once.
        proved: whether its golden logits, or finite answers, were seen in this process; its content never changes.
        loading: done once it is resident, or failed with why it is not; None where nobody loads it.
        reason: why it is unavailable, or what is wrong with its stored file while it answers from memory.
        next_try: when it is tried again, in seconds of `time.monotonic()`; None where trying again cannot help.
        failures: how often it could not be loaded, one after the other.
        tried_again: whether it is the server itself that has it loaded now, after a failure.
        damaged: whether its stored file was found damaged or unreadable when it was last looked at.
    """

    entry: VersionEntry
    held_slot: int | None = None
    row_bytes: int = 0
    known_facts: Facts | None = None
    method: str | None = None
    state: State = State.REGISTERED
    proved: bool = False
    loading: Future[None] | None = None
    reason: str | None = None
    next_try: float | None = None
    failures: int = 0
    tried_again: bool = False
    damaged: bool = False
    pins: int = 0
    retired: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.entry, VersionRecord):
            self.learn(self.entry)
        if self.held_slot is not None:
            self.state, self.proved = State.RESIDENT, True

    @property
    def facts(self) -> Facts:
        """What answering needs of a version that is pinned."""
        if self.known_facts is None:
            raise ValueError("the manifest of this version is not known")
        return self.known_facts

    @property
    def slot(self) -> int:
        """The row of a version that is pinned, and resident since."""
        if self.held_slot is None:
            raise ValueError("this version is not in memory")
        return self.held_slot

    def learn(self, record: VersionRecord) -> None:
        """Keeps what is needed of a manifest, and no more: ten thousand versions lie in memory."""
        # A task may have been renamed since the record was read.
        self.entry = VersionEntry(self.entry.task, record.version, record.digest, record.size, record.created_at)
        self.known_facts = replace(Facts.of(record), task=self.entry.task)
        self.method = sys.intern(record.manifest.method)


@dataclass(slots=True)
class TaskEntry:
    """A task: its versions by number and its aliases."""

    name: str
    versions: dict[int, Version] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)

    def version(self, number: int) -> Version:
        """One of its versions.

        Raises:
            VersionNotFound: it has none of this number.
        """
        if number not in self.versions:
            raise VersionNotFound(f"{self.name} has no version {number}")
        return self.versions[number]

    def alias(self, name: str) -> Alias:
        """Where one of its aliases points.

        Raises:
            AliasNotFound: it has none of this name.
        """
        if name not in self.aliases:
            number = name.removeprefix("v")
            known = number.isdecimal() and int(number) in self.versions
            meant = f"; version {number} is {self.name}@{number}" if known else ""
            raise AliasNotFound(f"{self.name} has no alias {shown(name)}{meant}")
        return self.aliases[name]

    def copy(self, after: int = 0, most: int | None = None) -> Self:
        """What stays as it is when the directory changes: aliases by name, and by number a page of the versions."""
        numbers = [] if most == 0 else sorted(number for number in self.versions if number > after)[:most]
        versions = {number: self.versions[number] for number in numbers}
        return type(self)(self.name, versions, dict(sorted(self.aliases.items())))
