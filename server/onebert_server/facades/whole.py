"""Texts that are read to their end: for clients that could not be told that one was cut."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onebert_encoder.answering.asked import PLAIN, Asked, AskedWindow
from onebert_encoder.text.tokens import Text
from onebert_server.answering.answers import Answered
from onebert_server.answering.backend import Wanted
from onebert_server.answering.plan import Reading
from onebert_server.facades.facade import Call
from onebert_server.limits import MAX_ITEMS
from onebert_store.errors import InvalidInput

# Tokens that one window shares with the next: what a sentence at their border needs of what stands before it.
OVERLAP = 16


async def read_whole(
    call: Call[Any], refs: Sequence[str], texts: Sequence[Text], asked: Asked = PLAIN
) -> list[Answered]:
    """The answer of the i-th version to the i-th text, in windows where that is cut otherwise.

    A request of any length is asked in parts of as many texts as one of this server's own may have.

    Raises:
        InvalidInput: one cannot be read whole.
        OneBertError: see `Answerer.answer`.
    """
    answered: list[Answered] = []
    for begin in range(0, len(texts), MAX_ITEMS):
        part = slice(begin, begin + MAX_ITEMS)
        answered += await call.ask(Wanted(refs[part], asked=asked), texts[part], list)
    cut = [at for at, one in enumerate(answered) if _is_cut(one)]
    if cut:
        windows = replace(asked, window=AskedWindow(overlap=OVERLAP))
        again = await call.ask(Wanted([refs[at] for at in cut], asked=windows), [texts[at] for at in cut], list)
        for at, one in zip(cut, again, strict=True):
            # Of a pair the first text may be too long by itself.
            if _is_cut(one):
                raise InvalidInput(f"an input has more tokens than {one.facts.ref} reads: send it in parts")
            answered[at] = one
    return answered


def _is_cut(answered: Answered) -> bool:
    return isinstance(answered.reading, Reading) and answered.reading.truncated
