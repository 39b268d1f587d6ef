"""The hooks by which extensions join the core, which calls them and knows none of their modules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onebert_server.answering.plan import ComputedQuestion
from onebert_server.observed import Seen
from onebert_server.versions.moves import BeforeMove

TASK_RENAMED = "task.renamed"


class Event(NamedTuple):
    """A change that operators follow; `type` is its name for receivers, such as `alarm.on`."""

    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Hooks:
    """The listeners of a process with an engine; extensions add theirs while the runtime opens.

    Attributes:
        computed: get each question that the engine has computed and that has shadows, on the event loop.
        answered: get the answers of each finished request, on the event loop, so they must not wait.
        before_move: may refuse a move of an alias by raising a typed error; True if they have compared its versions.
        changed: get each event, on the thread that caused it, so they must not wait.
    """

    computed: list[Callable[[ComputedQuestion], None]] = field(default_factory=list)
    answered: list[Callable[[Sequence[Seen]], None]] = field(default_factory=list)
    before_move: list[BeforeMove] = field(default_factory=list)
    changed: list[Callable[[Event], None]] = field(default_factory=list)

    def announce(self, kind: str, data: Mapping[str, Any]) -> None:
        """Hands an event to every listener."""
        for listener in self.changed:
            listener(Event(kind, data))
