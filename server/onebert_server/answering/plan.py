"""Question → sequences: one sequence for the engine to run, or one for each window of a long text.

A question is one input for one version. `reading/` makes an answer of the logits of its sequences.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.scores import Array
from onebert_encoder.answering.windows import whole_window, window_of
from onebert_encoder.text.tokenizer import CutOnce, Tokenizer
from onebert_encoder.text.tokens import Cut, Pieces, Text
from onebert_encoder.text.windows import window_cuts
from onebert_server.answering.resolution import Resolved, refusal
from onebert_server.answering.sizes import answer_bytes
from onebert_server.answering.tokenizing import characters_of
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
            sequence has segments, or is read in windows or with places.
        room: ids of a single text that fit between them.
        sizes: see `answer_bytes`.
    """

    refusals: tuple[str | None, str | None]
    window: Window | None
    around: tuple[list[int], list[int]] | None
    room: int
    sizes: tuple[int, int]


def rules_of(facts: Facts, asked: Asked, tokenizer: Tokenizer) -> Rules:
    """Returns the rules; those without options are made once for each version."""
    refusals = refusal(facts, asked, pair=False), refusal(facts, asked, pair=True)
    window = None if all(refusals) else window_of(facts, facts.max_length, asked)
    around = None if refusals[0] or facts.per_token or window is not None else tokenizer.around
    room = 0 if around is None else tokenizer.room(1, facts.max_length)
    rules = Rules(refusals, window, around, room, answer_bytes(facts, asked))
    if asked is PLAIN:
        facts.prepared["rules"] = rules
    return rules


class Questions:
    """The questions of one request to one version.

    Attributes:
        numbers: of the questions in their request, and `texts` their inputs, of so many `characters`.
        blank: the texts, by number, in which the base finds no token; `lay` leaves them out of all else.
        tokenized: by text, ids, or if it is `in_pieces` pieces; None if a turn tokenizes the texts.
        items: the questions, once they are laid.
        ids, lengths: token ids of each sequence, and their number.
        types, seconds: the segments of these ids if there are others than 0, and the start of a pair's own sequence,
            else 0.
        keys: equal ones are one text, cut alike.
        computed: the logits of all sequences, and how many each has; None until they are there.
    """

    __slots__ = (
        *("asked", "blank", "characters", "computed", "facts", "ids", "items", "keys", "lengths", "numbers", "pairs"),
        *("resolved", "rules", "seconds", "texts", "tokenized", "types"),
    )

    ids: Sequence[list[int]]
    lengths: Sequence[int]
    keys: Sequence[Any]

    def __init__(
        self, resolved: Resolved, asked: Asked, numbers: Sequence[int], texts: Sequence[Text], tokenizer: Tokenizer
    ) -> None:
        """Raises InvalidInput if the version cannot answer such questions."""
        self.resolved = resolved
        self.facts = facts = resolved.facts
        self.asked, self.numbers, self.texts = asked, numbers, texts
        prepared = facts.prepared.get("rules") if asked is PLAIN else None
        self.rules = rules = prepared or rules_of(facts, asked, tokenizer)
        kinds = {*map(type, texts)}
        self.pairs = tuple in kinds
        if self.pairs or rules.refusals[0]:
            for kind in kinds:
                if why := rules.refusals[kind is tuple]:
                    raise InvalidInput(why)
        self.characters = sum(map(characters_of if self.pairs else len, texts))
        self.blank: Mapping[int, Text] = {}
        self.tokenized: Mapping[Any, Any] | None = None
        self.items: Sequence[Question] = ()
        self.computed: tuple[Array, Array] | None = None
        self.types: Sequence[list[int]] | None = None
        self.seconds: Sequence[int] | None = None

    @property
    def reads_to_end(self) -> bool:
        """Whether a text that is longer than a sequence is read in windows."""
        return self.asked.whole or self.rules.window is not None

    @property
    def in_pieces(self) -> bool:
        """Whether ids alone are not enough; see `Rules.around`."""
        return self.pairs or self.rules.around is None

    def lay(self, tokenizer: Tokenizer, tokenized: Mapping[Any, Any], cuts: CutOnce) -> None:
        """Cuts the inputs to sequences; see `tokenized`."""
        each = [*map(tokenized.__getitem__, self.texts)]
        if self.pairs or self.rules.around is None:
            self._leave_out([any(pieces.lengths) for pieces in each])
            pieces = [pieces for pieces in each if any(pieces.lengths)]
            self._lay_pieces(tokenizer.reading(self.facts.pooling), pieces, cuts)
            return
        ids, room = each, self.rules.room
        if [] in ids:
            self._leave_out(ids)
            ids = [*filter(None, ids)]
        lengths = [*map(len, ids)]
        if self.asked.whole and max(lengths, default=0) > room:
            # Some are to be read in windows, by their pieces.
            pieces = [Pieces((text_ids,), (len(text_ids),)) for text_ids in ids]
            self._lay_pieces(tokenizer.reading(self.facts.pooling), pieces, cuts)
            return
        # No function of our own is called per text.
        before, after = self.rules.around or ([], [])
        self.ids = sequences = []
        for text_ids in ids:
            sequences.append(before + text_ids[:room] + after)
        self.lengths = tokens = [*map(len, sequences)]
        self.keys = [*zip(self.texts, tokens, strict=True)]
        columns = self.texts, repeat(self.facts), repeat(self.asked), tokens, map(room.__lt__, lengths)
        self.items = [*map(Question, *columns)]

    def _leave_out(self, tokens: Sequence[Any]) -> None:
        """Leaves out the inputs without tokens."""
        inputs = [*zip(self.numbers, self.texts, tokens, strict=True)]
        if not all(tokens):
            self.blank = {number: text for number, text, of_text in inputs if not of_text}
            self.numbers = [number for number, _, of_text in inputs if of_text]
            self.texts = [text for _, text, of_text in inputs if of_text]

    def _lay_pieces(self, tokenizer: Tokenizer, inputs: Sequence[Pieces], once: CutOnce) -> None:
        facts, asked = self.facts, self.asked
        ids, types, seconds, keys, items = [], [], [], [], []
        for text, pieces in zip(self.texts, inputs, strict=True):
            cuts, windows = _expand(pieces, facts, tokenizer, asked, self.rules.window)
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


def _expand(
    pieces: Pieces, facts: Facts, tokenizer: Tokenizer, asked: Asked, window: Window | None
) -> tuple[Sequence[Cut], bool]:
    """Returns the pieces of each sequence to run, and whether these are windows, or else the beginning of the input."""
    if window is None:
        fitting = tokenizer.fit(pieces, facts.max_length)
        if not asked.whole or not tokenizer.measure(pieces, fitting)[1]:
            return (fitting,), False
        window = whole_window(facts, facts.max_length)
    return window_cuts(tokenizer, pieces, window.tokens, window.overlap), True
