"""The hooks by which extensions join the core, which calls them and knows none of their modules."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onebert_server.access.context import Context
from onebert_server.observed import Seen
from onebert_store.registry.target import Target

TASK_RENAMED = "task.renamed"


class Move(NamedTuple):
    """A requested move of an alias, whose versions are in memory; `expected` is the alias's tag, None if it is new."""

    task: str
    alias: str
    target: Target
    expected: str | None


class Event(NamedTuple):
    """A change that operators follow; `type` is its name for receivers, such as `alarm.on`."""

    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Hooks:
    """The listeners of a process with an engine; extensions add theirs while the runtime opens.

    Attributes:
        answered: get the answers of each finished request, on the event loop, so they must not wait.
        before_move: may refuse a move of an alias by raising a typed error; True if they have compared its versions.
        changed: get each event, on the thread that caused it, so they must not wait.
    """

    answered: list[Callable[[Sequence[Seen]], None]] = field(default_factory=list)
    before_move: list[Callable[[Move, Context], Awaitable[bool]]] = field(default_factory=list)
    changed: list[Callable[[Event], None]] = field(default_factory=list)

    def announce(self, kind: str, data: Mapping[str, Any]) -> None:
        """Hands an event to every listener."""
        for listener in self.changed:
            listener(Event(kind, data))
