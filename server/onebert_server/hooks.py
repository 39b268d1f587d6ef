"""The hooks by which extensions join the core, which calls them and knows none of their modules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onebert_server.answering.admission import Followed
from onebert_server.observed import Kept
from onebert_server.telemetry.counts import Listener
from onebert_server.versions.catalog import Deleting
from onebert_server.versions.moves import BeforeMove


class Event(NamedTuple):
    """A change that operators follow; `type` is its name for receivers, such as `alarm.on`."""

    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Hooks:
    """The listeners of a process with an engine; extensions add theirs while the runtime opens.

    Attributes:
        shadowed: get the questions that the engine has computed and that have shadows, on the event loop.
        answered: get the answers of a version that a turn has finished, on the event loop, under the lock of
            `AnswerCounts`, so they must not wait.
        sampled: get answers that were chosen by their tasks' shares, and how many others a front end has dropped, on
            the event loop or in a worker thread, so they must not wait. Without one no answer is chosen.
        before_move: may refuse a move of an alias by raising a typed error; what they return is checked as it moves.
        deleting: are entered before a task or a version of it is deleted, and left afterwards, in a thread.
        changed: get each event, on the thread that caused it, so they must not wait.
        storage: return "ok", or the error code if the extension's own storage refused its last change.
    """

    shadowed: list[Followed] = field(default_factory=list)
    answered: list[Listener] = field(default_factory=list)
    sampled: list[Callable[[Sequence[Kept], int], None]] = field(default_factory=list)
    before_move: list[BeforeMove] = field(default_factory=list)
    deleting: list[Deleting] = field(default_factory=list)
    changed: list[Callable[[Event], None]] = field(default_factory=list)
    storage: list[Callable[[], str]] = field(default_factory=list)

    def sample(self, answers: Sequence[Kept], dropped: int = 0) -> None:
        """Hands chosen answers to every listener."""
        for listener in self.sampled:
            listener(answers, dropped)

    def announce(self, kind: str, data: Mapping[str, Any]) -> None:
        """Hands an event to every listener."""
        for listener in self.changed:
            listener(Event(kind, data))
