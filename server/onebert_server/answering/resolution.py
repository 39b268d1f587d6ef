"""Meanings of references: a resolution gives an edge versions and rows, and the edge remembers them."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from onebert_encoder.answering.answer import kind_of
from onebert_encoder.answering.asked import Asked
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.versions.facts import Facts, Shadowing
from onebert_store.registry.keeping import Keeping

# Approximate bytes of labels that an edge remembers: Python's overhead in bytes per label, and per reference.
MAX_REMEMBERED_BYTES = 2**25
_LABEL_BYTES, _RESOLVED_BYTES = 64, 1024


class Resolved(NamedTuple):
    """The version of a reference, and its row as a `Block` names it.

    The engine answers by this row, or refuses the request with RowGone if the row, or the meaning of references to it,
    has changed since.

    Attributes:
        host: index among the engine's hosts.
        keeping: how much its task keeps of its answers.
        lasting: whether a later request may use it, too. False if each request has a choice of its own: of a split's
            versions, or of shadows.
        shadows: those that shall compute the questions, too; see `Gateway.computed`.
    """

    facts: Facts
    host: int
    slot: int
    generation: int
    keeping: Keeping | None = None
    lasting: bool = True
    shadows: Shadowing | None = None


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
