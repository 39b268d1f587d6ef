"""One request's questions, on their whole way: its texts, the rows of its versions, sequences, logits and answers."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from math import inf
from operator import attrgetter, itemgetter, mul
from typing import Any

from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.answering.gateway import Resolved, Wanted
from onebert_server.answering.plan import BlankText, Questions, ReadingRules, grouped
from onebert_server.answering.reading import ANSWER_IN_NUMBERS, CHARACTERS_IN_NUMBER, Reading, Unanswered
from onebert_server.answering.sizes import AnswerSize
from onebert_server.answering.tokenizing import Splitter, characters_of
from onebert_server.engine.block import Ended
from onebert_server.observed import ANSWER, FORWARD, QUEUE, TOKENIZE
from onebert_server.versions.facts import Shadowing
from onebert_store.errors import AnswerNotFinite, InvalidInput, OneBertError, TooLarge

# The work of a turn in characters, some four milliseconds; what is more waits for later turns. A text costs as much as
# `TEXT_IN_CHARACTERS` beside its own.
TURN_CHARACTERS, TEXT_IN_CHARACTERS = 10_240, 16
# Characters of a request that its turn tokenizes, in some two milliseconds; workers tokenize more.
_SHORT_CHARACTERS = 2**12
_SPAN_ID = attrgetter("span_id")
_LABEL_COUNT = itemgetter(ReadingRules._fields.index("labels"))


class Asking:
    """Questions that are answered together, by the versions with which it has last begun.

    Attributes:
        blanks: whether blank texts are left out. With False they are refused, with None if no base finds a token.
        tokenized: by text, ids or pieces of long texts, which stay for further versions; see `Answerer`.
        groups: the questions, by versions that read alike.
        missed: by number, the errors of questions that are not computed.
        is_long, in_pieces: whether all texts, or some, are tokenized before their turn.
        cost: the work of its turn, in characters; all that a turn does if it is more.
        came, began, submitted: times when it came, when its versions were there, and when its texts were tokenized.
        first, last: times when its first batch began, and when the last one ended; `batches` are the spans of all.
        answered: ends when all logits are there.
        numbers: of the engine's requests that are under way.
        requests: how many the quota counts with them.
        waits: whether it waits for a later turn.
        reading_cost: of reading the answers and of writing them in a client's format, in logits.
        readings: the answers of all groups; None until they are read.
    """

    __slots__ = (
        *("_size", "answered", "batches", "began", "blanks", "came", "context", "cost", "first", "groups"),
        *("in_pieces", "is_long", "last", "missed", "numbers", "reading_cost", "readings", "requests", "submitted"),
        *("texts", "tokenized", "waits", "wanted"),
    )

    answered: asyncio.Future[None]
    readings: Sequence[Reading | AnswerNotFinite] | None

    def __init__(self, context: Context, wanted: Wanted, texts: Sequence[Text], blanks: bool | None) -> None:
        self.context, self.wanted, self.texts, self.blanks = context, wanted, texts, blanks
        self.came = time.monotonic()
        self.tokenized: dict[object, dict[Any, Any]] = {}
        self.missed: dict[int, OneBertError] = {}
        self.groups: list[Questions] = []
        # A partial answer may be late before it begins.
        self.readings, self.batches = None, list[Any]()
        self.requests = self.cost = 0

    def begin(self, versions: Sequence[Resolved | OneBertError], splitters: Mapping[str, Splitter]) -> None:
        """Begins, or begins anew, with the version of each question, or its error if a partial answer is wanted.

        Raises InvalidInput if a version cannot answer its question, unless a partial answer is wanted.
        """
        self.answered = asyncio.get_running_loop().create_future()
        self.began = self.submitted = time.monotonic()
        self.first, self.last = inf, 0.0
        self.numbers, self.batches = list[int](), list[Any]()
        self.waits, self._size = False, AnswerSize()
        self.reading_cost, self.readings = 0, None
        self.missed = {}
        if (shadows := self.wanted.shadows) is not None:
            versions = _shadowed(versions, shadows)
        texts = self.texts if len(self.texts) > 1 else [*self.texts] * len(versions)
        missed = self.missed if self.wanted.partial else None
        self.groups = grouped(versions, self.wanted.asked, texts, splitters, missed)
        self.cost, characters, self.in_pieces = 0, 0, False
        for group in self.groups:
            self.cost += group.characters + TEXT_IN_CHARACTERS * len(group.texts)
            # A single text is for all versions.
            characters = group.characters + (characters if len(self.texts) > 1 else 0)
            self.in_pieces = self.in_pieces or group.in_pieces
        self.cost, self.is_long = min(self.cost, TURN_CHARACTERS), characters > _SHORT_CHARACTERS

    def measure(self, group: Questions, splitters: Mapping[str, Splitter], tokenized: Mapping[Any, Any]) -> None:
        """Counts the answers to questions before they are cut; see `Questions.measure`.

        Raises these errors, unless a partial answer is wanted and not all is too large or blank:
            BlankText: a text without a token is not to be left out.
            TooLarge: the answers are too large together.
            InvalidInput: there is no room for an input beside special tokens.
        """
        try:
            group.measure(splitters[group.facts.base].tokenizer, tokenized)
            for number, (text, _) in group.blank.items():
                self._check_blank(number, text, splitters)
            if group.counted is not None:
                self._size.add(group.counted)
        except (InvalidInput, TooLarge) as error:
            if not self.wanted.partial or isinstance(error, BlankText):
                raise
            if len(group.numbers) == 1:
                self.missed[group.numbers[0]] = error
                group.take_apart()
                return
            for single in group.take_apart():
                self.groups.append(single)
                self.measure(single, splitters, tokenized)

    def _check_blank(self, number: int, text: Text, splitters: Mapping[str, Splitter]) -> None:
        bases = splitters.values() if self.blanks is None else ()
        split = [base.tokenizer.split([text], 1, placed=False) for base in bases]
        if not self.blanks and not any(any(pieces.lengths) for [pieces] in split):
            several = len(self.texts) > 1
            raise BlankText(number if several else 0, len(self.texts))

    def take(self, groups: Sequence[Questions], ended: Ended, first: int, stops: Sequence[int]) -> None:
        """Takes the logits of groups, whose sequences follow the `first` one; `stops`: of each one's logits."""
        for group in groups:
            last = first + len(group.ids)
            logits, sizes = ended.logits[stops[first] : stops[last]], ended.outputs[first:last]
            group.logits, first = (logits, sizes), last
            characters = characters_of(group.texts) if group.in_pieces else map(len, group.texts)
            repeated = sum(map(mul, map(_LABEL_COUNT, group.rules), characters))
            self.reading_cost += logits.size + ANSWER_IN_NUMBERS * len(group.items) + repeated // CHARACTERS_IN_NUMBER

    def fail(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)

    def miss(self, error: OneBertError) -> None:
        """Gives all questions without an error this one."""
        self.missed = {number: self.missed.get(number, error) for number in range(len(self.wanted.refs or ()))}
        self.groups, self.readings = [], None

    def unanswered(self) -> dict[int, Unanswered]:
        """Questions that are shown without an answer, by number; a fan-out to every task leaves them out."""
        unanswered, refs = dict[int, Unanswered](), self.wanted.refs
        for group in self.groups if refs else ():
            for number, (_, version) in group.blank.items():
                unanswered[number] = Unanswered(version.facts.ref, BlankText(0, 1))
        for number, error in self.missed.items():
            unanswered[number] = Unanswered((refs or ())[number], error)
        return unanswered

    def note_phases(self, answered: float) -> None:
        """Notes the phases of the request, and since `answered` of its answer."""
        phases = [(ANSWER, answered, time.monotonic())]
        if self.groups and self.last:
            # The time until the versions were loaded is waiting, too.
            waited = self.submitted - (self.began - self.came)
            computed = (QUEUE, waited, self.first), (FORWARD, self.first, self.last)
            phases[:0] = (TOKENIZE, self.began, self.submitted), *computed
        # By their spans' ids: OpenTelemetry's contexts have no hash.
        batches = dict(zip(map(_SPAN_ID, self.batches), self.batches, strict=True))
        self.context.observed.phases(phases, [*batches.values()])


def _shadowed(
    versions: Sequence[Resolved | OneBertError], shadows: dict[str, Shadowing]
) -> Sequence[Resolved | OneBertError]:
    """Gives the versions of a part the shadows that they have in the parts before it."""
    resolved = [version for version in versions if isinstance(version, Resolved)]
    shadows |= {version.facts.ref: version.shadows for version in resolved if version.shadows}
    return [
        version._replace(shadows=shadows.get(version.facts.ref)) if isinstance(version, Resolved) else version
        for version in versions
    ]
