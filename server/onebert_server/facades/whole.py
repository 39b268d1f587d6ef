"""Texts that are read to their end: for clients that could not be told that one was cut."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from onebert_encoder.answering.asked import PLAIN, Asked, AskedWindow
from onebert_encoder.text.tokens import Text
from onebert_server.answering.answers import Answered
from onebert_server.answering.backend import Wanted
from onebert_server.answering.plan import Reading
from onebert_server.facades.facade import Call
from onebert_server.limits import MAX_ITEMS

# Tokens that one window shares with the next: what a sentence at their border needs of what stands before it.
OVERLAP = 16

T = TypeVar("T")


async def read_whole(
    call: Call[Any],
    refs: Sequence[str],
    texts: Sequence[Text],
    show: Callable[[int, Answered], T],
    asked: Asked = PLAIN,
) -> list[T]:
    """What is shown of the answer of the i-th version to the i-th text, in windows where that is cut otherwise.

    A request of any length is asked in parts of as many texts as one of this server's own may have. A reference means
    in all of them what it meant in the first.

    Args:
        call: whose texts they are.
        refs: a reference for each text.
        texts: texts or pairs.
        show: see `Call.ask_each`; it is given whole texts alone, and not in their order.
        asked: what the answers shall be like.

    Raises:
        InvalidInput: one cannot be read whole.
        OneBertError: see `Answerer.answer`.
    """
    shown: list[T] = []
    meant: dict[str, str] = {}
    for begin in range(0, len(texts), MAX_ITEMS):
        part = range(begin, min(begin + MAX_ITEMS, len(texts)))
        exact = [meant.get(refs[at], refs[at]) for at in part]
        first = await _ask(call, part, exact, texts, asked, lambda at, one: _unless_cut(at, one, show))
        meant |= {refs[at]: ref for at, (ref, _) in zip(part, first, strict=True)}
        cut = [(at, ref) for at, (ref, found) in zip(part, first, strict=True) if not found]
        windows = replace(asked, window=AskedWindow(overlap=OVERLAP))
        again = await _ask(call, [at for at, _ in cut], [ref for _, ref in cut], texts, windows, show) if cut else []
        rest = iter(again)
        shown += [found[0] if found else next(rest) for _, found in first]
    return shown


async def _ask(
    call: Call[Any],
    part: Sequence[int],
    refs: Sequence[str],
    texts: Sequence[Text],
    asked: Asked,
    show: Callable[[int, Answered], T],
) -> list[T]:
    wanted = Wanted(refs, asked=asked)
    return await call.ask_each(wanted, [texts[at] for at in part], lambda index, one: show(part[index], one))


def _unless_cut(at: int, answered: Answered, show: Callable[[int, Answered], T]) -> tuple[str, Sequence[T]]:
    """Which version answered, and what is shown of its answer; nothing of a text that was cut."""
    cut = isinstance(answered.reading, Reading) and answered.reading.truncated
    return answered.facts.ref, [] if cut else [show(at, answered)]
