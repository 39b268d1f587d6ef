"""An edge's view of the engine's process: `admission` implements it there, `remote/gateway` in a front end."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from onebert_encoder.answering.answer import kind_of
from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.engine.block import Block, Ended
from onebert_server.versions.facts import Facts, Shadowing
from onebert_store.errors import OneBertError
from onebert_store.registry.keeping import Keeping

BARE = "base:"
"""Begins a reference to a base itself, whose answers are vectors of texts; its name follows. No task has a colon."""

# Approximate bytes of labels that an edge remembers: Python's overhead in bytes per label, and per reference.
MAX_REMEMBERED_BYTES = 2**25
_LABEL_BYTES, _RESOLVED_BYTES = 64, 1024


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


class Resolved(NamedTuple):
    """The version of a reference, and its row as a `Block` names it.

    The engine answers by this row, or refuses the request with RowGone if the row, or the meaning of references to it,
    has changed since.

    Attributes:
        host: index among the engine's hosts.
        keeping: how much its task keeps of its answers.
        lasting: whether a later request may use it, too. False if each request has a choice of its own: of a split's
            versions, or of shadows.
        shadows: those that shall compute the questions, too; see `Gateway.shadow`.
    """

    facts: Facts
    host: int
    slot: int
    generation: int
    keeping: Keeping | None = None
    lasting: bool = True
    shadows: Shadowing | None = None


Item: TypeAlias = tuple[str, int, int]
"""A label with the slice of the text that it is of; 0 and 0 for a label of the whole text."""


class ShadowQuestions(NamedTuple):
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

    answered: Callable[[Ended], None]

    def refuse_early(self, context: Context) -> None:
        """Refuses early and cheaply, with the errors of `submit`, if that would refuse the smallest request."""

    async def resolve(self, context: Context, wanted: Wanted) -> list[Resolved | OneBertError]:
        """Returns the version of each reference, or of every task, once all are in memory; resolved at one moment.

        Raises these errors; all but Forbidden and ShuttingDown are returned in place of the version if it is `partial`:
            Forbidden: the principal may not classify.
            InvalidInput: a malformed reference, or too many tasks.
            TaskNotFound, VersionNotFound, AliasNotFound, VersionUnavailable: no such version, or none for this
                principal.
            ChangeUnknown, QueueFull, OverShare, DeadlineExceeded, ShuttingDown: the versions are not there in time.
        """

    def submit(self, block: Block) -> None:
        """Submits the requests of one turn; never blocks. `answered` gets each of them, with its errors too.

        These are OverQuota, QueueFull, OverShare, DeadlineExceeded, TooLarge, ShuttingDown and EngineFailed of the
        whole request, and RowGone if one of its rows is not the one that was resolved.
        """

    def withdraw(self, numbers: Sequence[int]) -> None:
        """Withdraws requests, by their numbers, that nobody waits for; `answered` gets none of them any more."""

    def shadow(self, questions: ShadowQuestions) -> None:
        """Has the shadows of a reference compute its questions."""


class Resolutions:
    """An edge's memory of resolutions, by reference; for one thread. The least recently used go first.

    It needs no news of changes: the engine refuses whatever is out of date, and then the edge calls `forget`.
    """

    def __init__(self, most_bytes: int = MAX_REMEMBERED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._known: OrderedDict[str, Resolved] = OrderedDict()

    def find(self, refs: Sequence[str], context: Context) -> list[Resolved] | None:
        """Returns the versions of references, or None if they must be resolved.

        They must if one of them is not remembered, or the principal may not classify with its task; or if the answer
        must include a certain change, which only the engine's process can tell.
        """
        known = self._known
        distinct = set(refs)
        if context.min_seq or not distinct <= known.keys():
            return None
        principal = context.principal
        for ref in distinct:
            if not (principal.classifies_all or principal.may(Action.CLASSIFY, known[ref].facts.task)):
                return None
            known.move_to_end(ref)
        return [*map(known.__getitem__, refs)]

    def remember(self, resolved: Mapping[str, Resolved]) -> None:
        """Remembers versions by their references, if they last."""
        for ref, version in resolved.items():
            if (before := self._known.pop(ref, None)) is not None:
                self._bytes -= _bytes_of(before)
            if version.lasting:
                self._known[ref] = version
                self._bytes += _bytes_of(version)
        while self._bytes > self._most_bytes:
            self._bytes -= _bytes_of(self._known.popitem(last=False)[1])

    def forget(self, refused: Iterable[tuple[str, object]]) -> None:
        """Forgets references whose rows the engine has refused, unless another request has resolved them again."""
        for ref, version in refused:
            if self._known.get(ref) is version:
                self._bytes -= _bytes_of(self._known.pop(ref))


def refusal(facts: Facts, asked: Asked, pair: bool) -> str | None:
    """Returns why a version cannot answer such a request; None if it can."""
    kind = kind_of(facts)
    what = f"{facts.ref} is a {facts.task_type} task and"
    if not kind.takes(pair):
        return f"{what} takes {kind.question}"
    if why := kind.refusal(asked):
        return f"{what} has {why}"
    if asked.window is not None and (asked.window.tokens or 0) > facts.max_length:
        return f"{facts.ref} takes {facts.max_length} tokens, and a window of it no more"
    return None


def _bytes_of(version: Resolved) -> int:
    facts = version.facts
    return _RESOLVED_BYTES + facts.label_bytes + _LABEL_BYTES * len(facts.labels)
