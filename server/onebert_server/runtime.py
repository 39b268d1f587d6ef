"""The parts of a replica without HTTP, as its routes see them; `run/opening.py` builds them."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onebert_server.access.context import Context
from onebert_server.access.key_poller import KeyPoller
from onebert_server.access.keys import KeyRing
from onebert_server.answering.admission import Admission
from onebert_server.answering.edge import Edge
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import Host
from onebert_server.fairness.receiving import Receiving
from onebert_server.hooks import Hooks
from onebert_server.settings import Settings
from onebert_server.telemetry.metrics import Metrics
from onebert_server.versions.catalog import Catalog
from onebert_server.versions.directory import Directory
from onebert_server.versions.follower import Follower
from onebert_server.versions.moves import Moves
from onebert_server.versions.presence import Presence
from onebert_server.versions.residency.loader import Loader
from onebert_server.versions.residency.residents import Residents
from onebert_server.versions.version import TaskEntry
from onebert_store.errors import ShuttingDown, Unhealthy
from onebert_store.registry.registry import Registry

P = TypeVar("P")

# Batches in a row after which not even the bare base was computed: after some errors a GPU computes nothing until its
# process ends. Failing requests alone are no reason to restart: whoever sends them would stop the server for all.
MAX_FAILED_IN_A_ROW = 10
# Seconds after which a forward pass counts as hung.
PASS_TIMEOUT = 60.0


class Parts:
    """The parts of extensions by their classes."""

    def __init__(self) -> None:
        self._parts: dict[type, object] = {}

    def add(self, part: object) -> None:
        self._parts[type(part)] = part

    def find(self, kind: type[P]) -> P | None:
        """Returns the part of a class; None if the settings switch it off."""
        part = self._parts.get(kind)
        return part if isinstance(part, kind) else None

    def __getitem__(self, kind: type[P]) -> P:
        if (part := self.find(kind)) is None:
            raise KeyError(kind.__qualname__)
        return part


Columns = Callable[["Runtime", Sequence[TaskEntry], Context, bool], Mapping[str, Mapping[str, Any]]]
"""Fields of `TaskStatus` by task, of these tasks and for this caller, in full or as for a list; it may block."""


@dataclass
class Runtime(Edge):
    """All parts of the engine's process.

    Attributes:
        hooks: where extensions listen; `parts` has their parts, `columns` what they know of tasks.
        workers: threads that tokenize and read answers.
        registrars: threads for the registry's database and files, so that a slow disk delays no answer.
        readers: threads for whole stored files, so that a hanging bucket delays no change.
        uploader: one thread, so that uploads queue behind each other and not before answers.
        presence: this replica among others on the registry; None if the registry is not shared.
    """

    hooks: Hooks
    metrics: Metrics
    keys: KeyRing
    key_poller: KeyPoller
    settings: Settings
    engine: Engine
    catalog: Catalog
    residents: Residents
    loader: Loader
    follower: Follower
    presence: Presence | None
    registry: Registry
    admission: Admission
    moves: Moves
    workers: Executor
    registrars: Executor
    readers: Executor
    uploader: Executor
    receiving: Receiving = field(default_factory=Receiving)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts = Parts()
        self.columns: list[Columns] = []

    def settings_of(self, kind: type[P]) -> P:
        """Returns the settings as an extension declares them."""
        if not isinstance(self.settings, kind):
            raise TypeError(f"the settings of {kind.__module__} are not installed")
        return self.settings

    @property
    def hosts(self) -> list[Host]:
        """The bases, in the order of the settings."""
        return [*self.engine.hosts.values()]

    def host_of(self, base: str) -> Host:
        """Returns the host of a base; the first one if this server has no such base any more."""
        return self.engine.hosts.get(base, self.hosts[0])

    @property
    def directory(self) -> Directory:
        return self.catalog.directory

    def check_health(self) -> None:
        """Raises Unhealthy if this process cannot answer any more and an orchestrator should restart it."""
        for name, part in (("engine", self.engine), ("loader", self.loader), ("follower", self.follower)):
            if part.dead:
                raise Unhealthy(f"the {name}'s thread is dead")
        if self.engine.pass_seconds > PASS_TIMEOUT:
            raise Unhealthy("a forward pass takes longer than a minute")
        if self.engine.failed_in_a_row >= MAX_FAILED_IN_A_ROW:
            raise Unhealthy("every forward pass fails")

    def check_ready(self) -> None:
        """Raises ShuttingDown while this process stops, and like `check_health`."""
        self.check_health()
        if self.draining or not self.engine.alive:
            raise ShuttingDown("the server is stopping")
