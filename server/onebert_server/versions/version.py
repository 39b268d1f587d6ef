"""A version in memory with its state and its facts; a task with its versions and aliases."""

import sys
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from onebert_server.versions.choice import KeyOf, chosen, random_percentile
from onebert_server.versions.facts import Facts
from onebert_store.errors import AliasNotFound, VersionNotFound
from onebert_store.file.card import card_of
from onebert_store.file.measured import Measured, score_of
from onebert_store.file.strict_json import printable
from onebert_store.registry.records import Alias, Payer, VersionEntry, VersionRecord

if TYPE_CHECKING:
    # A front end knows versions by `Held` alone, and computes nothing.
    from onebert_server.engine.host import Slot


class State(StrEnum):
    """The state of a version; docs/architecture.md draws the transitions."""

    REGISTERED = "registered"
    LOADING = "loading"
    RESIDENT = "resident"
    EVICTED = "evicted"
    UNAVAILABLE = "unavailable"


@dataclass(eq=False, slots=True)
class Version:
    """One registered version; once it is published only `Directory` changes it, under its lock.

    A request that has pinned it may read it without the lock. It is published with its entry, and with its row if there
    is one; all else comes later.

    Attributes:
        known_facts: None while neither the registry nor the file could be read.
        score: what its trainer measured, known with `known_facts`.
        lacks: the targets that it was trained to keep and does not, known with `known_facts`.
        row_bytes: bytes of its row on the device; 0 until it was folded once.
        proved: whether this process has seen its golden logits, or finite answers; its content never changes.
        loading: ends when it is resident, or with the error; None while nobody loads it.
        reason: why it is unavailable.
        next_try: time of the next try, in seconds of `time.monotonic()`; None if another try cannot help.
        tried_again: whether the server loads it on its own account, without a request.
        spare: whether its last loading on the server's account was only for room that nobody else needs: a shadow's.
        spare_again: time from which a question may load it so again, in seconds of `time.monotonic()`.
        missed: by the answering version's number, the questions that it was a shadow of and not in memory for.
    """

    entry: VersionEntry
    held_slot: "Slot | None" = None
    row_bytes: int = 0
    known_facts: Facts | None = None
    method: str | None = None
    score: Measured | None = None
    lacks: tuple[str, ...] = ()
    state: State = State.REGISTERED
    proved: bool = False
    loading: Future[None] | None = None
    reason: str | None = None
    next_try: float | None = None
    failures: int = 0
    tried_again: bool = False
    spare: bool = False
    spare_again: float = 0.0
    missed: dict[int, int] | None = None
    pins: int = 0
    retired: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.entry, VersionRecord):
            self.learn(self.entry)
        if self.held_slot is not None:
            self.state, self.proved = State.RESIDENT, True

    @property
    def facts(self) -> Facts:
        if self.known_facts is None:
            raise ValueError("the manifest of this version is not known")
        return self.known_facts

    @property
    def slot(self) -> "Slot":
        if self.held_slot is None:
            raise ValueError("this version is not in memory")
        return self.held_slot

    def learn(self, record: VersionRecord) -> None:
        """Keeps the needed part of a manifest, and no more: ten thousand versions lie in memory."""
        self.entry = VersionEntry(record.task, record.version, record.digest, record.size, record.created_at)
        self.known_facts = Facts.from_record(record)
        self.method = sys.intern(record.manifest.method)
        self.score = score_of(record.manifest.training)
        self.lacks = tuple(card_of(record.manifest).decide.lacks)


class Held(tuple[Version, ...]):
    """The versions that compute a question: the one that answers, then its shadows, whose work `payer` pays.

    `lasting`: whether the reference means the same for the next request.
    """

    payer: Payer | None
    lasting: bool

    def __new__(cls, versions: Iterable[Version], payer: Payer | None = None, lasting: bool = True) -> Self:
        held = super().__new__(cls, versions)
        held.payer, held.lasting = payer, lasting
        return held


@dataclass(slots=True)
class TaskEntry:
    """A task: its versions by number and its aliases."""

    name: str
    versions: dict[int, Version] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)

    def version(self, number: int) -> Version:
        if number not in self.versions:
            raise VersionNotFound(f"{self.name} has no version {number}")
        return self.versions[number]

    def alias(self, name: str) -> Alias:
        if name not in self.aliases:
            number = name.removeprefix("v")
            known = number.isdecimal() and int(number) in self.versions
            hint = f"; version {number} is {self.name}@{number}" if known else ""
            raise AliasNotFound(f"{self.name} has no alias {printable(name)}{hint}")
        return self.aliases[name]

    def choose(self, alias: str, key_of: KeyOf) -> Held:
        """Returns the version that answers a request to an alias, and its shadows; raises AliasNotFound."""
        at = self.alias(alias)
        answering = self.versions[chosen(at.target, self.name, key_of)]
        shadows = (
            self.versions[shadow.version] for shadow in at.target.shadows if random_percentile() <= shadow.percent
        )
        lasting = len(at.target.shares) == 1 and not at.target.shadows
        return Held((answering, *shadows), at.payer, lasting)

    def copy(self, after: int = 0, limit: int | None = None) -> Self:
        """Returns a copy that the directory does not change: aliases by name, and a page of the versions by number."""
        numbers = [] if limit == 0 else sorted(number for number in self.versions if number > after)[:limit]
        versions = {number: self.versions[number] for number in numbers}
        return type(self)(self.name, versions, dict(sorted(self.aliases.items())))
