"""Any number of questions, asked in parts: one request for quotas, the deadline and the ids of kept answers."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.answering.answers import Answerer
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.plan import BlankText
from onebert_server.answering.reading import Answered, Unanswered
from onebert_server.answering.tokenizing import characters_of
from onebert_server.limits import MAX_ITEMS, MAX_TEXT, parts_of
from onebert_server.versions.facts import Shadowing
from onebert_store.errors import OneBertError, OverQuota, OverShare, QueueFull, TooLarge

T = TypeVar("T")

# Refusals of a busy server; a version that cannot be loaded, or a disk, may take minutes to come back.
_BUSY = frozenset({QueueFull.code, OverShare.code, OverQuota.code})


class Policy(NamedTuple):
    """The rule of `ask_many` for a refused part.

    Attributes:
        goes_on: parts have no more characters than the longest text, so that each may end in time. It asks a part again
            after the `Retry-After` of a full queue or a used-up quota, as long as the deadline allows, and asks one
            that is too large in halves. A blank text, and a text that is too large alone, is an `Unanswered`. Otherwise
            a part's error is the error of all.
        each: a question that fails is an `Unanswered` of its own; see `Wanted.partial`.
        until: no part begins after this time, in seconds of `time.monotonic()`; there are fewer answers then.
    """

    goes_on: bool = False
    each: bool = False
    until: float | None = None


# A client repeats its own request; nobody repeats the server's questions, so they go on.
FAIL, GO_ON = Policy(), Policy(goes_on=True)


async def ask_many(
    answerer: Answerer,
    context: Context,
    refs: Sequence[str],
    texts: Sequence[Text],
    show: Callable[[int, Any], T],
    policy: Policy = FAIL,
    asked: Asked = PLAIN,
    blanks: bool = False,
) -> list[T]:
    """Answers each text with its reference, which means the same version in all parts.

    Quotas check and count one request, with the first part, and the tokens of all parts. `show` and `blanks` are as for
    `Answerer.answer`, and an index is one of `texts`, in errors too.

    Raises:
        OneBertError: see `Answerer.answer`, and `Policy`.
    """
    number = context.observed.number(len(texts))
    shown: list[T] = []
    resolved, shadows = dict[str, str](), dict[str, Shadowing]()
    costs, most = characters_of(texts), MAX_TEXT if policy.goes_on else inf
    waiting = deque(parts_of(costs, most, MAX_ITEMS))
    while waiting and not (shown and policy.until is not None and time.monotonic() >= policy.until):
        part = waiting.popleft()

        def of_part(index: int, answered: Any, part: range = part) -> T:
            if isinstance(answered, Answered):
                resolved.setdefault(refs[part[index]], answered.facts.ref)
            return show(part[index], answered)

        each = [resolved.get(refs[index], refs[index]) for index in part]
        wanted = Wanted(each, asked=asked, partial=policy.each, shadows=shadows)
        questions = [texts[index] for index in part]
        numbered = blanks or policy.goes_on, number + part.start
        try:
            shown += await answerer.answer(context, wanted, questions, of_part, *numbered)
        except OneBertError as error:
            parts, pause = _again(error, part, len(texts), policy)
            at = time.monotonic() + pause
            if shown and policy.until is not None and at >= policy.until:
                break
            if at >= context.deadline:
                raise
            await asyncio.sleep(pause)
            waiting.extendleft(reversed(parts))
            if not parts:
                shown.append(show(part.start, Unanswered(refs[part.start], error)))
    return shown


def _again(error: OneBertError, part: range, count: int, policy: Policy) -> tuple[Sequence[range], int]:
    """Returns the parts to ask in place of a refused one, after a pause in seconds; none if its one text has no answer.

    Raises the error if it ends the request, of `count` texts.
    """
    # A front end's errors have the code of their kind, and no kind.
    if policy.goes_on and error.code == TooLarge.code:
        half = len(part) // 2
        return (part[:half], part[half:]) if half else (), 0
    if policy.goes_on and error.code in _BUSY and error.retry_after is not None:
        return (part,), error.retry_after
    raise BlankText(part[error.index], count) if isinstance(error, BlankText) else error
