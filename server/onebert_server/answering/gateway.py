"""An edge's view of the engine's process: `admission` implements it there, `remote/gateway` in a front end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.versions.facts import Shadowing
from onebert_store.errors import OneBertError

if TYPE_CHECKING:
    # `Resolver`, in the file of `Resolved`, takes the `Wanted` of this one.
    from onebert_server.answering.resolution import Resolved
    from onebert_server.engine.block import Block, Ended

BARE = "base:"
"""Begins a reference to a base itself, whose answers are vectors of texts; its name follows. No task has a colon."""


@dataclass(frozen=True)
class Wanted:
    """The versions that shall answer, and the options of their answers.

    Attributes:
        refs: one reference per input, all to tasks or all to bases; None means the live version of every task that
            takes such an input.
        pair: whether the input is a pair of texts; read only without references.
        partial: whether what goes wrong with one reference is said of that one; only with references.
        only_facts: whether nothing shall answer, so that no version is loaded and no row is named; only without
            references.
        shadows: of a request in parts, the shadows that its versions have, by their references: the shadows of the
            first part compute the questions of all parts.
    """

    refs: Sequence[str] | None
    pair: bool = False
    asked: Asked = PLAIN
    only_facts: bool = False
    partial: bool = False
    shadows: dict[str, Shadowing] | None = field(default=None, compare=False)


Item: TypeAlias = tuple[str, int, int]
"""A label with the slice of the text that it is of; 0 and 0 for a label of the whole text."""


class Computed(NamedTuple):
    """Questions of one request to a reference with shadows, once the request has ended; `texts` are the inputs.

    Attributes:
        answers: the parts of each input's answer by the version's own rules; None without an answer.
        asked: the options for the shadows; see `Asked.of_shadows`.
    """

    shadows: Shadowing
    texts: Sequence[Text]
    answers: Sequence[tuple[Item, ...] | None]
    asked: Asked


class Gateway(Protocol):
    """Resolves references, and takes the sequences of one turn of an event loop as one block.

    Attributes:
        answered: gets the requests that have ended, on the event loop that submitted them; the edge sets it.
    """

    answered: "Callable[[Ended], None]"

    def check(self, context: Context) -> None:
        """Refuses early and cheaply, with the errors of `submit`, if that would refuse the smallest request."""

    async def resolve(self, context: Context, wanted: Wanted) -> "list[Resolved | OneBertError]":
        """Returns the version of each reference, or of every task, once all are in memory; resolved at one moment.

        Raises these errors; all but Forbidden and ShuttingDown are returned in place of the version if it is `partial`:
            Forbidden: the principal may not classify.
            InvalidInput: a malformed reference, or too many tasks.
            TaskNotFound, VersionNotFound, AliasNotFound, VersionUnavailable: no such version, or none for this
                principal.
            ChangeUnknown, QueueFull, OverShare, DeadlineExceeded, ShuttingDown: the versions are not there in time.
        """

    def submit(self, block: "Block") -> None:
        """Submits the requests of one turn; never blocks. `answered` gets each of them, with its errors too.

        These are OverQuota, QueueFull, OverShare, DeadlineExceeded, TooLarge, ShuttingDown and EngineFailed of the
        whole request, and RowGone if one of its rows is not the one that was resolved.
        """

    def withdraw(self, numbers: Sequence[int]) -> None:
        """Withdraws requests, by their numbers, that nobody waits for; `answered` gets none of them any more."""

    def computed(self, questions: Computed) -> None:
        """Has the shadows of a reference compute its questions."""
