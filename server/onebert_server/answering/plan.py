"""Question → sequences: one sequence for the engine to run, or one for each window of a long text.

A question is one input for one version. `reading/` makes an answer of the logits of its sequences.
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
from onebert_encoder.text.windows import window_cuts
from onebert_server.answering.resolution import Resolved, refusal
from onebert_server.answering.sizes import Counted, answer_bytes, counted
from onebert_server.answering.tokenizing import Splitter, characters_of
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput
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


class Rules(NamedTuple):
    """How a version reads inputs under the options of a request.

    Attributes:
        refusals: why it cannot answer a single text, and a pair; None if it can.
        window: in which it reads a text that is longer than a sequence.
        around: special tokens before and after the ids of a single text; None if ids alone are not enough, because the
            sequence has segments, or is read in windows, by its ends or with places.
        room: ids of a single text that fit between them.
        alike: equal for versions that read single texts alike, each in one sequence.
        sizes: see `answer_bytes`.
        labels, label_bytes: their number, and by the version's reference the bytes of all.
    """

    refusals: tuple[str | None, str | None]
    window: Window | None
    around: tuple[list[int], list[int]] | None
    room: int
    alike: object
    sizes: tuple[int, int]
    labels: int
    label_bytes: tuple[str, int]


_SIZES, _LABELS, _LABEL_BYTES = map(itemgetter, map(Rules._fields.index, ("sizes", "labels", "label_bytes")))
_FACTS = itemgetter(Resolved._fields.index("facts"))


def rules_of(facts: Facts, asked: Asked, tokenizer: Tokenizer) -> Rules:
    """Returns the rules; those without options are made once for each version."""
    refusals = refusal(facts, asked, pair=False), refusal(facts, asked, pair=True)
    window = None if all(refusals) else window_of(facts, facts.max_length, asked)
    in_pieces = facts.per_token or window is not None or cut_rule(facts) == "ends"
    around = None if refusals[0] or in_pieces else tokenizer.around
    room = 0 if around is None else tokenizer.room(1, facts.max_length)
    alike = facts if around is None or asked.whole else (facts.base, room)
    labels = len(facts.labels), (facts.ref, facts.label_bytes)
    rules = Rules(refusals, window, around, room, alike, answer_bytes(facts, asked), *labels)
    if asked is PLAIN:
        facts.prepared["rules"] = rules
    return rules


class Questions:
    """The questions of one request to versions that read their inputs alike.

    Several versions share an object only if each input is one text in one sequence, and no version has shadows.

    Attributes:
        numbers: of the questions in their request, and `texts` their inputs, of so many `characters`.
        versions, rules: of each question.
        resolved, facts: of the first version.
        blank: text and version, by number, where the base finds no token; `lay` leaves them out of all else.
        tokenized: by text, ids, or if it is `in_pieces` pieces; None if a turn tokenizes the texts.
        items: the questions, once they are laid.
        counted: the size of their answers; None without questions.
        ids, lengths: token ids of each sequence, and their number.
        types, seconds: the segments of these ids if any is not 0, and the start of a pair's own sequence, else 0.
        keys: equal ones are one text, cut alike.
        computed: the logits of all sequences, and how many each has; None until they are there.
    """

    __slots__ = (
        *("asked", "blank", "characters", "computed", "counted", "facts", "ids", "in_pieces", "items", "keys"),
        *("lengths", "numbers", "resolved", "rules", "seconds", "texts", "tokenized", "types", "versions"),
    )

    ids: Sequence[list[int]]
    lengths: Sequence[int]
    keys: Sequence[Any]

    def __init__(
        self,
        versions: Sequence[Resolved],
        asked: Asked,
        numbers: Sequence[int],
        texts: Sequence[Text],
        rules: Sequence[Rules],
    ) -> None:
        """Raises InvalidInput if the versions cannot answer such questions."""
        self.versions, self.rules = versions, rules
        self.resolved = versions[0]
        self.facts = self.resolved.facts
        self.asked, self.numbers, self.texts = asked, numbers, texts
        kinds, first = {*map(type, texts)}, rules[0]
        pairs = tuple in kinds
        if pairs or first.refusals[0]:
            for kind in kinds:
                if why := first.refusals[kind is tuple]:
                    raise InvalidInput(why)
        # Whether ids alone are not enough.
        self.in_pieces = pairs or first.around is None
        self.characters = sum(map(characters_of if pairs else len, texts))
        self.blank: Mapping[int, tuple[Text, Resolved]] = {}
        self.tokenized: Mapping[Any, Any] | None = None
        self.items: Sequence[Question] = ()
        self.counted: Counted | None = None
        self.computed: tuple[Array, Array] | None = None
        self.types: Sequence[list[int]] | None = None
        self.seconds: Sequence[int] | None = None

    @property
    def reads_to_end(self) -> bool:
        """Whether the end of a text that is longer than a sequence is read."""
        return self.asked.whole or self.rules[0].window is not None or cut_rule(self.facts) == "ends"

    def lay(self, tokenizer: Tokenizer, tokenized: Mapping[Any, Any], cuts: CutOnce) -> None:
        """Cuts the inputs to sequences, and counts their answers; see `tokenized`."""
        each, first = [*map(tokenized.__getitem__, self.texts)], self.rules[0]
        if self.in_pieces:
            self._leave_out([any(pieces.lengths) for pieces in each])
            self._lay_pieces(tokenizer, [pieces for pieces in each if any(pieces.lengths)], cuts)
            return
        if [] in each:
            self._leave_out(each)
            each = [*filter(None, each)]
        lengths, room = [*map(len, each)], first.room
        if self.asked.whole and max(lengths, default=0) > room:
            # Some are to be read in windows, by their pieces.
            self._lay_pieces(tokenizer, [Pieces((ids,), (len(ids),)) for ids in each], cuts)
            return
        # No function of our own is called per text.
        before, after = first.around or ([], [])
        self.ids = sequences = []
        for ids in each:
            sequences.append(before + ids[:room] + after)
        self.lengths = tokens = [*map(len, sequences)]
        self.keys = [*zip(self.texts, tokens, strict=True)]
        columns = self.texts, map(_FACTS, self.versions), repeat(self.asked), tokens, map(room.__lt__, lengths)
        self.items = [*map(Question, *columns)]
        if each:
            size = sum(map(sum, map(_SIZES, self.rules)))
            self.counted = Counted(len(each), sum(map(_LABELS, self.rules)), size, dict(map(_LABEL_BYTES, self.rules)))

    def _leave_out(self, tokens: Sequence[Any]) -> None:
        if all(tokens):
            return
        inputs = zip(self.numbers, self.texts, self.versions, tokens, strict=True)
        self.blank = {number: (text, version) for number, text, version, of_text in inputs if not of_text}
        self.numbers, self.texts = [*compress(self.numbers, tokens)], [*compress(self.texts, tokens)]
        self.versions, self.rules = [*compress(self.versions, tokens)], [*compress(self.rules, tokens)]

    def _lay_pieces(self, tokenizer: Tokenizer, inputs: Sequence[Pieces], once: CutOnce) -> None:
        facts, asked, tokenizer = self.facts, self.asked, tokenizer.reading(self.facts.pooling)
        ids, types, seconds, keys, items = [], [], [], [], []
        for text, pieces in zip(self.texts, inputs, strict=True):
            cuts, windows = _expand(pieces, facts, tokenizer, asked, self.rules[0].window)
            whole = tuple((0, length) for length in pieces.lengths)
            measured = tokenizer.measure(pieces, whole if windows else cuts[0])
            items.append(Question(text, facts, asked, *measured, cuts, windows, pieces))
            for cut in cuts:
                tokens = once.cut(tokenizer, pieces, cut)
                ids.append(tokens.input_ids)
                types.append(tokens.type_ids)
                seconds.append(tokens.second)
                starts = len(cut) == 1 and not cut[0][0]
                keys.append((text, len(tokens)) if starts else (text, cut, tokens.second))
        self.ids, self.seconds, self.keys, self.items = ids, seconds, keys, items
        self.lengths = [*map(len, ids)]
        self.types = types if any(map(any, types)) else None
        if items:
            self.counted = counted(facts, self.rules[0].sizes, self.lengths, len(items))


def grouped(
    versions: Sequence[Resolved],
    asked: Asked,
    numbers: Sequence[int],
    texts: Sequence[Text],
    splitters: Mapping[str, Splitter],
) -> list[Questions]:
    """Groups a request's questions by how they are read; raises InvalidInput if a version cannot answer its own."""
    rules, groups = list[Rules](), dict[object, list[tuple[Resolved, int, Text, Rules]]]()
    for version in versions:
        facts = version.facts
        prepared = facts.prepared.get("rules") if asked is PLAIN else None
        rules.append(prepared or rules_of(facts, asked, splitters[facts.base].tokenizer))
    for question in zip(versions, numbers, texts, rules, strict=True):
        apart = question[0].shadows or not isinstance(question[2], str)
        groups.setdefault(question[0] if apart else question[3].alike, []).append(question)
    return [_together(questions, asked) for questions in groups.values()]


def _together(questions: Sequence[tuple[Resolved, int, Text, Rules]], asked: Asked) -> Questions:
    versions, numbers, texts, rules = zip(*questions, strict=True)
    return Questions(versions, asked, numbers, texts, rules)


def _expand(
    pieces: Pieces, facts: Facts, tokenizer: Tokenizer, asked: Asked, window: Window | None
) -> tuple[Sequence[Cut], bool]:
    """Returns the pieces of each sequence to run, and whether these are windows, or else what fits of the input."""
    if window is None:
        fitting = tokenizer.fit(pieces, facts.max_length, cut_rule(facts))
        if not asked.whole or not tokenizer.measure(pieces, fitting)[1]:
            return (fitting,), False
        window = whole_window(facts, facts.max_length)
    return window_cuts(tokenizer, pieces, window.tokens, window.overlap), True
