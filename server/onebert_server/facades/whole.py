"""Classifies texts without truncation, for clients whose replies cannot report it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.text.tokens import Text
from onebert_server.answering.answers import Answered
from onebert_server.answering.backend import Wanted
from onebert_server.facades.facade import Call
from onebert_server.limits import MAX_ITEMS

T = TypeVar("T")


async def read_whole(
    call: Call[Any],
    refs: Sequence[str],
    texts: Sequence[Text],
    show: Callable[[int, Answered], T],
    asked: Asked = PLAIN,
    blank: Callable[[], T] | None = None,
) -> list[T]:
    """Classifies each text with its reference, and reads texts over the task's length in windows.

    Splits a request into parts of at most `MAX_ITEMS` texts. A reference resolves to the same version in all parts.
    """
    asked = replace(asked, whole=True)
    shown: list[T] = []
    resolved: dict[str, str] = {}
    for begin in range(0, len(texts), MAX_ITEMS):
        part = slice(begin, begin + MAX_ITEMS)

        def of_part(index: int, answered: Answered, begin: int = begin) -> T:
            resolved.setdefault(refs[begin + index], answered.facts.ref)
            return show(begin + index, answered)

        exact = [resolved.get(ref, ref) for ref in refs[part]]
        # The parts are one request, so quotas count the first part only.
        call = replace(call, context=replace(call.context, counted=begin > 0))
        shown += await call.ask(Wanted(exact, asked=asked), texts[part], of_part, blank)
    return shown
