"""Question → sequences: one sequence for the engine to run, or one for each window of a long text.

A question is one input for one version. `reading.py` makes an answer of the logits of its sequences.
"""

from collections.abc import Mapping, Sequence
from itertools import compress, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.scores import Array, cut_rule
from onebert_encoder.answering.windows import whole_window, window_of
from onebert_encoder.text.tokenizer import CutOnce, Tokenizer
from onebert_encoder.text.tokens import Cut, Pieces, Text
from onebert_encoder.text.windows import window_count, window_cuts
from onebert_server.answering.gateway import Resolved, refusal
from onebert_server.answering.sizes import Sized, answer_bytes, counted
from onebert_server.answering.tokenizing import Splitter, characters_of
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput, OneBertError
from onebert_store.file.decision import Window


class BlankText(InvalidInput):
    """A text without a token; `index` is its place among `count` texts."""

    RULE = "must not be blank: the tokenizer finds no token in it"

    def __init__(self, index: int, count: int) -> None:
        super().__init__(f"text {index + 1} of {count} {self.RULE}")
        self.index = index


class Question(NamedTuple):
    """One input for one version, with everything that reading its answer needs.

    Attributes:
        tokens: number of its tokens, with special tokens; read by windows: of the whole input.
        truncated: whether some tokens of the input were left out.
        cuts: the pieces that each of its sequences has, in the order of their logits.
        windows: whether its sequences are windows.
        pieces: of its input; None without windows if its task has one answer for the whole text.
    """

    text: Text
    facts: Facts
    asked: Asked
    tokens: int
    truncated: bool
    cuts: Sequence[Cut] = ((),)
    windows: bool = False
    pieces: Pieces | None = None


class ReadingRules(NamedTuple):
    """How a version reads inputs under the options of a request.

    Attributes:
        refusals: why it cannot answer a single text, and a pair; None if it can.
        window: in which it reads a text that is longer than a sequence.
        whole: whether a longer text is read in windows where the version has none.
        around: special tokens before and after the ids of a single text; None if ids alone are not enough, because the
            sequence has segments, or is read in windows, by its ends or with places.
        room: ids of a single text that fit between them.
        alike: equal for versions that read single texts alike, each in one sequence.
        sizes: see `answer_bytes`.
        labels, label_bytes: their number, and by the version's reference the bytes of all.
    """

    refusals: tuple[str | None, str | None]
    window: Window | None
    whole: bool
    around: tuple[list[int], list[int]] | None
    room: int
    alike: object
    sizes: tuple[int, int]
    labels: int
    label_bytes: tuple[str, int]


_SIZES, _LABELS, _LABEL_BYTES = map(itemgetter, map(ReadingRules._fields.index, ("sizes", "labels", "label_bytes")))
_FACTS = itemgetter(Resolved._fields.index("facts"))


def rules_of(facts: Facts, asked: Asked, tokenizer: Tokenizer) -> ReadingRules:
    """Returns the rules; those without options are made once for each version."""
    refusals = refusal(facts, asked, pair=False), refusal(facts, asked, pair=True)
    window = None if all(refusals) else window_of(facts, facts.max_length, asked)
    cut = cut_rule(facts)
    whole, in_pieces = asked.whole and cut == "head", facts.per_token or window is not None or cut == "ends"
    around = None if refusals[0] or in_pieces else tokenizer.around
    room = 0 if around is None else tokenizer.room(1, facts.max_length)
    alike = facts if around is None or whole else (facts.base, room)
    labels = len(facts.labels), (facts.ref, facts.label_bytes)
    rules = ReadingRules(refusals, window, whole, around, room, alike, answer_bytes(facts, asked), *labels)
    if asked is PLAIN:
        facts.prepared["rules"] = rules
    return rules


class Questions:
    """The questions of one request to versions that read their inputs alike: measured, then cut to sequences.

    Several versions share an object only if each input is one text in one sequence, and no version has shadows.

    Attributes:
        numbers: of the questions in their request, and `texts` their inputs, of so many `characters`.
        versions, rules: of each question.
        resolved, facts: of the first version.
        in_pieces: whether pieces are cut to sequences, because ids alone are not enough.
        blank: text and version, by number, where the base finds no token; `measure` leaves them out of all else.
        tokenized: the ids or the pieces of each input; None until they are measured.
        sequences: how many are cut of the pieces of each input.
        counted: the size of their answers; None without questions.
        items: the questions, once they are cut.
        ids, lengths: token ids of each sequence, and their number.
        types, seconds: the segments of the ids if any is `in_segments`, and the starts of pairs' own sequences, else 0.
        keys: equal ones are one text, cut alike.
        logits: the logits of all sequences, and how many each has; None until they are there.
    """

    __slots__ = (
        *("asked", "blank", "characters", "counted", "facts", "ids", "in_pieces", "in_segments", "items", "keys"),
        *("lengths", "logits", "numbers", "resolved", "rules", "seconds", "sequences", "texts", "tokenized", "types"),
        "versions",
    )

    def __init__(
        self,
        versions: Sequence[Resolved],
        asked: Asked,
        numbers: Sequence[int],
        texts: Sequence[Text],
        rules: Sequence[ReadingRules],
    ) -> None:
        self.versions, self.rules = versions, rules
        self.resolved = versions[0]
        self.facts = self.resolved.facts
        self.asked, self.numbers, self.texts = asked, numbers, texts
        pairs = tuple in {*map(type, texts)}
        self.in_pieces, self.in_segments = pairs or rules[0].around is None, False
        self.characters = sum(characters_of(texts) if pairs else map(len, texts))
        self.blank: Mapping[int, tuple[Text, Resolved]] = {}
        self.tokenized: Sequence[Any] | None = None
        self.counted: Sized | None = None
        self.sequences: Sequence[int] = ()
        self.items: list[Question] = []
        self.ids, self.types = list[list[int]](), list[list[int]]()
        self.lengths, self.seconds, self.keys = list[int](), list[int](), list[Any]()
        self.logits: tuple[Array, Array] | None = None

    @property
    def reads_to_end(self) -> bool:
        """Whether the end of a text that is longer than a sequence is read."""
        return self.rules[0].whole or self.rules[0].window is not None or cut_rule(self.facts) == "ends"

    def measure(self, tokenizer: Tokenizer, tokenized: Mapping[Any, Any]) -> None:
        """Counts the answers by the lengths of inputs alone, and leaves out blank ones; `cut` follows.

        `tokenized` has by text its ids, or its pieces if questions are `in_pieces`. Raises InvalidInput, TooLarge.
        """
        each, rules = [*map(tokenized.__getitem__, self.texts)], self.rules[0]
        present = [any(pieces.lengths) for pieces in each] if self.in_pieces else each
        if not all(present):
            self._leave_out(present)
            each = [*compress(each, present)]
        self.tokenized = each
        if not each:
            return
        if rules.whole and not self.in_pieces and max(map(len, each)) > rules.room:
            # Some are to be read in windows, by their pieces.
            self.in_pieces, self.tokenized = True, [Pieces((ids,), (len(ids),)) for ids in each]
        if self.in_pieces:
            tokenizer = tokenizer.reading(self.facts.pooling)
            extents = [_extent(pieces, self.facts, tokenizer, rules) for pieces in self.tokenized]
            self.sequences, tokens = zip(*extents, strict=True)
            self.counted = counted(self.facts, rules.sizes, sum(self.sequences), sum(tokens), len(each))
        else:
            size = sum(map(sum, map(_SIZES, self.rules)))
            self.counted = Sized(len(each), sum(map(_LABELS, self.rules)), size, dict(map(_LABEL_BYTES, self.rules)))

    def cut(self, tokenizer: Tokenizer, once: CutOnce) -> None:
        """Cuts the inputs to sequences, once they are measured."""
        each = self.tokenized or ()
        if self.in_pieces or not each:
            for place in range(len(each)):
                self.cut_pieces(place, tokenizer, once)
            return
        # No function of our own is called per text.
        room, (before, after) = self.rules[0].room, self.rules[0].around or ([], [])
        for ids in each:
            self.ids.append(before + ids[:room] + after)
        self.lengths = [*map(len, self.ids)]
        self.keys = [*zip(self.texts, self.lengths, strict=True)]
        truncated = map(room.__lt__, map(len, each))
        columns = self.texts, map(_FACTS, self.versions), repeat(self.asked), self.lengths, truncated
        self.items = [*map(Question, *columns)]

    def cut_pieces(self, place: int, tokenizer: Tokenizer, once: CutOnce) -> None:
        """Cuts one input, after all before it."""
        facts, asked, text, pieces = self.facts, self.asked, self.texts[place], (self.tokenized or ())[place]
        tokenizer = tokenizer.reading(facts.pooling)
        cut, window = _fitting(pieces, facts, tokenizer, self.rules[0])
        cuts = [cut] if window is None else window_cuts(tokenizer, pieces, window.tokens, window.overlap)
        self.items.append(
            Question(text, facts, asked, *tokenizer.measure(pieces, cut), cuts, window is not None, pieces)
        )
        for cut in cuts:
            tokens = once.cut(tokenizer, pieces, cut)
            self.ids.append(tokens.input_ids)
            self.lengths.append(len(tokens))
            self.types.append(tokens.type_ids)
            self.in_segments = self.in_segments or any(tokens.type_ids)
            self.seconds.append(tokens.second)
            starts = len(cut) == 1 and not cut[0][0]
            self.keys.append((text, len(tokens)) if starts else (text, cut, tokens.second))

    def take_apart(self) -> "list[Questions]":
        """Returns each question alone, to be measured; only blank ones are left."""
        columns = self.versions, self.numbers, self.texts, self.rules
        singles = [Questions([v], self.asked, [n], [t], [r]) for v, n, t, r in zip(*columns, strict=True)]
        self.numbers = self.texts = self.versions = self.rules = self.tokenized = self.sequences = ()
        self.counted = None
        return singles

    def _leave_out(self, present: Sequence[Any]) -> None:
        inputs = zip(self.numbers, self.texts, self.versions, present, strict=True)
        self.blank = {number: (text, version) for number, text, version, tokens in inputs if not tokens}
        self.numbers, self.texts = [*compress(self.numbers, present)], [*compress(self.texts, present)]
        self.versions, self.rules = [*compress(self.versions, present)], [*compress(self.rules, present)]


def _fitting(pieces: Pieces, facts: Facts, tokenizer: Tokenizer, rules: ReadingRules) -> tuple[Cut, Window | None]:
    """Returns the pieces that are read of an input; of its windows, if it is read in these, all."""
    window = rules.window
    if window is None:
        fitting = tokenizer.fit(pieces, facts.max_length, cut_rule(facts))
        if not rules.whole or not tokenizer.measure(pieces, fitting)[1]:
            return fitting, None
        window = whole_window(facts, facts.max_length)
    return tuple((0, length) for length in pieces.lengths), window


def _extent(pieces: Pieces, facts: Facts, tokenizer: Tokenizer, rules: ReadingRules) -> tuple[int, int]:
    """Returns the number of an input's sequences, and of their tokens together."""
    cut, window = _fitting(pieces, facts, tokenizer, rules)
    if window is None:
        return 1, tokenizer.measure(pieces, cut)[0]
    count, _ = window_count(tokenizer, pieces, window.tokens, window.overlap)
    *_, length = pieces.lengths
    around = tokenizer.measure(pieces, cut)[0] - length
    return count, count * around + length + (count - 1) * window.overlap


def grouped(
    versions: Sequence[Resolved | OneBertError],
    asked: Asked,
    texts: Sequence[Text],
    splitters: Mapping[str, Splitter],
    missed: dict[int, OneBertError] | None = None,
) -> list[Questions]:
    """Groups a request's questions by how they are read; `missed` gets by number the errors of those without an answer.

    Raises InvalidInput without `missed` if a version cannot answer its question.
    """
    groups = dict[object, list[tuple[Resolved, int, Text, ReadingRules]]]()
    for number, (version, text) in enumerate(zip(versions, texts, strict=True)):
        if isinstance(version, Resolved):
            facts = version.facts
            prepared = facts.prepared.get("rules") if asked is PLAIN else None
            rules = prepared or rules_of(facts, asked, splitters[facts.base].tokenizer)
            why = rules.refusals[not isinstance(text, str)]
            if why is None:
                apart = version.shadows or not isinstance(text, str)
                groups.setdefault(version if apart else rules.alike, []).append((version, number, text, rules))
                continue
            error: OneBertError = InvalidInput(why)
        else:
            error = version
        if missed is None:
            raise error
        missed[number] = error
    alike = list[Questions]()
    for each in groups.values():
        of_each, numbers, inputs, rules_of_each = zip(*each, strict=True)
        alike.append(Questions(of_each, asked, numbers, inputs, rules_of_each))
    return alike
