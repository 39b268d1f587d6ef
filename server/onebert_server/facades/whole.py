"""Texts that are read to their end: for clients that could not be told that one was cut."""

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
    """What is shown of the answer of the i-th version to the i-th text, in windows where that is cut otherwise.

    A request of any length is asked in parts of as many texts as one of this server's own may have. A reference means
    in all of them what it meant in the first.

    Args:
        call: whose texts they are.
        refs: a reference for each text.
        texts: texts or pairs.
        show: see `Call.ask`.
        asked: what the answers shall be like.
        blank: see `Call.ask`.

    Raises:
        InvalidInput: one cannot be read whole.
        OneBertError: see `Answerer.answer`.
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
        # The parts are one request: a quota that lets in the first lets in all.
        call = replace(call, context=replace(call.context, counted=begin > 0))
        shown += await call.ask(Wanted(exact, asked=asked), texts[part], of_part, blank)
    return shown
