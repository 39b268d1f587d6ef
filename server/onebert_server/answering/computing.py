"""Has the versions of references compute texts: resolves, tokenizes what is long, and asks in the loop's turn."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from onebert_encoder.text.tokenizer import CutOnce
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.answering.gateway import Gateway, Wanted
from onebert_server.answering.plan import BlankText, Questions, grouped
from onebert_server.answering.resolution import Resolutions, Resolved
from onebert_server.answering.tokenizing import Splitter, Tokenizing
from onebert_server.answering.turn import Asking, Part, Turn
from onebert_server.versions.facts import Facts, Identity, Shadowing
from onebert_store import errors
from onebert_store.errors import OneBertError

# Characters of a request that its turn tokenizes, in some two milliseconds; workers tokenize more.
_SHORT_CHARACTERS = 2**12

# Tries to have a version compute that changes whenever it has been resolved, as beside an alias that moves a hundred
# times a second on a busy machine.
_TRIES = 16

# A sequence costs as much to cut as so many characters to tokenize.
SEQUENCE_IN_CHARACTERS = 64

Tokenized = dict[tuple[str, bool, bool, bool], dict[Any, Any]]
"""Ids or pieces by text; by the base, whether they are pieces, and whether these are whole and have places."""

# Errors of one question that end the whole request all the same.
_OF_ALL = frozenset({errors.Forbidden.code, errors.OverQuota.code, errors.ShuttingDown.code})


class Computing:
    """Has versions compute; each question that was computed has the version that did."""

    def __init__(self, splitters: Mapping[str, Splitter], gateway: Gateway, tokenizing: Tokenizing) -> None:
        self._gateway, self._splitters, self._tokenizing = gateway, splitters, tokenizing
        self._resolutions = Resolutions()
        self._turn = Turn(gateway, splitters)

    async def compute(
        self, context: Context, wanted: Wanted, texts: Sequence[Text], numbers: Sequence[int], part: Part
    ) -> Asking:
        """Has the current versions compute; resolves them again if remembered ones are not current any more."""
        refusal: tuple[OneBertError, list[Identity]] | None = None
        known: Tokenized = {}
        for _ in range(_TRIES):
            began = time.monotonic()
            # After a refusal never a remembered version: the next question may have remembered the same one since.
            remembered = None if refusal or wanted.refs is None else self._resolutions.find(wanted.refs, context)
            resolved = remembered or await self._resolve(context, wanted)
            answering = resolved if wanted.shadows is None else _shadowed(resolved, wanted.shadows)
            versions = [version.facts.identity for version in resolved]
            asking: Asking | None = None
            try:
                if refusal is not None and versions == refusal[1]:
                    raise refusal[0]
                numbers = numbers if wanted.refs is not None else range(len(resolved))
                inputs = texts if len(texts) > 1 else [*texts] * len(resolved)
                questions = grouped(answering, wanted.asked, numbers, inputs, self._splitters)
                asking = Asking(context, questions, part, began)
                if apart := _not_short(asking.questions, len(texts)):
                    await self._tokenize(asking, apart, known)
                await self._turn.ask(asking)
                return asking
            except BaseException as error:
                if asking is not None:
                    self._turn.withdraw(asking)
                    if asking.requests:
                        context.requests.append(asking.requests)
                if not _may_be_outdated(error, remembered is not None):
                    if isinstance(error, errors.InvalidInput | errors.TooLarge):
                        self._turn.count(context, part)
                    raise
                if isinstance(error, errors.InvalidInput | errors.TooLarge):
                    refusal = error, versions
                self._resolutions.forget(zip(wanted.refs or (), resolved, strict=False))
        raise errors.VersionUnavailable("the version changes whenever it is asked", 1)

    async def live(self, context: Context, refs: Sequence[str] | None) -> list[Facts]:
        """Returns the versions of references, or the live ones of all tasks that take a text; see `Gateway.resolve`.

        Those of references are loaded, those of all tasks are not.
        """
        wanted = Wanted(refs, only_facts=refs is None)
        return [version.facts for version in await self._gateway.resolve(context, wanted)]

    async def compute_each(
        self, context: Context, wanted: Wanted, texts: Sequence[Text], part: Part
    ) -> list[Asking | OneBertError]:
        """Has each reference compute its text apart, up to the deadline; returns the error of a question instead."""
        refs = wanted.refs or ()
        questions = zip(refs, texts if len(texts) > 1 else repeat(texts[0], len(refs)), strict=True)
        tasks = [
            asyncio.ensure_future(_outcome(self.compute(context, replace(wanted, refs=[ref]), [text], [number], part)))
            for number, (ref, text) in enumerate(questions)
        ]
        try:
            done, late = await asyncio.wait(tasks, timeout=context.remaining, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                # One error ends all; nobody asks for those beside it.
                task.add_done_callback(lambda task: task.cancelled() or task.exception())
                task.cancel()
        too_late = errors.DeadlineExceeded("the answer was not there when the request's time was over")
        return [too_late if task in late else task.result() for task in tasks]

    async def _resolve(self, context: Context, wanted: Wanted) -> list[Resolved]:
        if wanted.refs is None:
            return await self._gateway.resolve(context, wanted)
        distinct = [*dict.fromkeys(wanted.refs)]
        versions = await self._gateway.resolve(context, replace(wanted, refs=distinct))
        known = dict(zip(distinct, versions, strict=True))
        self._resolutions.remember(known)
        return [known[ref] for ref in wanted.refs]

    async def _tokenize(self, asking: Asking, apart: Sequence[Questions], known: Tokenized) -> None:
        """Tokenizes texts before their turn, once for each base: to ids, if these are enough, else cuts their pieces.

        All is measured before anything is cut: what is too large costs no more than its tokens. `known` is kept.
        """
        principal = asking.context.principal.name
        alike: dict[tuple[str, bool], list[Questions]] = {}
        for group in apart:
            alike.setdefault((group.facts.base, group.in_pieces), []).append(group)
        for (base, in_pieces), each in alike.items():
            whole, placed = any(group.reads_to_end for group in each), any(group.facts.per_token for group in each)
            of_base = known.setdefault((base, in_pieces, whole, placed), {})
            texts: list[Any] = [*dict.fromkeys(text for group in each for text in group.texts if text not in of_base)]
            if texts:
                made: Sequence[Any]
                if in_pieces:
                    made = await self._tokenizing.split(principal, base, texts, whole, placed)
                else:
                    made = await self._tokenizing.ids(principal, base, texts, whole)
                of_base.update(zip(texts, made, strict=True))
            for group in each:
                asking.measure(group, self._splitters, of_base)
        inputs = [(group, place) for group in apart if group.in_pieces for place in range(len(group.sequences))]
        costs, once = [SEQUENCE_IN_CHARACTERS * group.sequences[place] for group, place in inputs], CutOnce()

        def cut(part: slice) -> list[None]:
            for group, place in inputs[part]:
                group.cut_pieces(place, self._splitters[group.facts.base].tokenizer, once)
            return []

        await self._tokenizing.run(principal, costs, cut)


def _shadowed(resolved: Sequence[Resolved], shadows: dict[str, Shadowing]) -> list[Resolved]:
    """Gives the versions of a part the shadows that they have in the parts before it."""
    shadows |= {version.facts.ref: version.shadows for version in resolved if version.shadows}
    return [version._replace(shadows=shadows.get(version.facts.ref)) for version in resolved]


async def _outcome(asking: Coroutine[Any, Any, Asking]) -> Asking | OneBertError:
    """Returns the error of one question, unless it ends the whole request."""
    try:
        return await asking
    except OneBertError as error:
        if isinstance(error, BlankText) or error.code in _OF_ALL:
            raise
        return error


def _may_be_outdated(error: BaseException, remembered: bool) -> bool:
    """Whether other versions may be meant by now: a remembered one may have refused what the current one takes."""
    if remembered and isinstance(error, errors.InvalidInput | errors.TooLarge):
        return True
    # A front end's errors have the code of their kind, and no kind.
    return isinstance(error, OneBertError) and error.code == errors.RowGone.code


def _not_short(questions: Sequence[Questions], texts: int) -> list[Questions]:
    """Returns the questions about so many texts that are to be tokenized before their turn."""
    apart, characters = [], 0
    for group in questions:
        # A single text is for all versions.
        characters = group.characters if texts == 1 else characters + group.characters
        if group.in_pieces:
            apart.append(group)
    return [*questions] if characters > _SHORT_CHARACTERS else apart
