"""Question → sequences: one sequence for the engine to run, or one for each window of a long text.

A question is one input for one version. `reading/` makes an answer of the logits of its sequences.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.scores import Array
from onebert_encoder.answering.windows import whole_window, window_of
from onebert_encoder.text.tokenizer import CutOnce, Tokenizer
from onebert_encoder.text.tokens import Cut, Pieces, Text
from onebert_encoder.text.windows import window_cuts
from onebert_server.answering.resolution import Resolved, refusal
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput


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


class Questions:
    """The questions of one request to one version.

    Attributes:
        numbers: of the questions in their request, and `texts` their inputs.
        blank: the texts, by number, in which the base finds no token; `lay` leaves them out of all else.
        pieces: of the inputs, split before; None if a turn tokenizes them.
        items: the questions, once they are laid.
        ids, types, seconds: token ids of each sequence, their segments if there are others than 0, and the start of a
            pair's own sequence, else 0.
        keys: equal ones are one text, cut alike.
        computed: the logits of all sequences, and how many each has; None until they are there.
    """

    __slots__ = (
        *("asked", "blank", "computed", "facts", "ids", "items", "keys", "numbers", "pieces", "resolved"),
        *("seconds", "texts", "types", "window"),
    )

    ids: Sequence[list[int]]
    keys: Sequence[Any]

    def __init__(self, resolved: Resolved, asked: Asked, numbers: Sequence[int], texts: Sequence[Text]) -> None:
        """Raises InvalidInput if the version cannot answer such questions."""
        self.resolved, self.facts = resolved, resolved.facts
        self.asked, self.numbers, self.texts = asked, numbers, texts
        for kind in {*map(type, texts)}:
            if why := refusal(self.facts, asked, pair=kind is tuple):
                raise InvalidInput(why)
        self.window = window_of(self.facts, self.facts.max_length, asked)
        self.blank: Mapping[int, Text] = {}
        self.pieces: Sequence[Pieces] | None = None
        self.items: Sequence[Question] = ()
        self.computed: tuple[Array, Array] | None = None
        self.types: Sequence[list[int]] | None = None
        self.seconds: Sequence[int] | None = None

    @property
    def reads_to_end(self) -> bool:
        """Whether a text that is longer than a sequence is read in windows."""
        return self.asked.whole or self.window is not None

    def takes_ids(self, tokenizer: Tokenizer) -> bool:
        """Whether token ids alone are enough: for single texts with one sequence each, read without places."""
        plain = tokenizer.around is not None and not self.facts.per_token and self.window is None
        return plain and tuple not in map(type, self.texts)

    def lay(self, tokenizer: Tokenizer, ids_of: Mapping[Any, list[int]], cuts: CutOnce) -> None:
        """Cuts the inputs to sequences. `ids_of`: of the inputs without pieces."""
        if self.pieces is not None:
            self._leave_out([any(pieces.lengths) for pieces in self.pieces])
        else:
            ids = [ids_of[text] for text in self.texts]
            if [] in ids:
                self._leave_out(ids)
                ids = [text_ids for text_ids in ids if text_ids]
            if self._lay_ids(tokenizer, ids):
                return
        self._lay_pieces(tokenizer.reading(self.facts.pooling), cuts)

    def _leave_out(self, tokens: Sequence[Any]) -> None:
        """Leaves out the inputs without tokens."""
        inputs = [*zip(self.numbers, self.texts, tokens, strict=True)]
        self.blank = {number: text for number, text, of_text in inputs if not of_text}
        if self.blank:
            self.numbers = [number for number, _, of_text in inputs if of_text]
            self.texts = [text for _, text, of_text in inputs if of_text]
            pieces_tokens = zip(self.pieces or (), tokens, strict=False)
            self.pieces = self.pieces and [pieces for pieces, of_text in pieces_tokens if of_text]

    def _lay_ids(self, tokenizer: Tokenizer, ids: Sequence[list[int]]) -> bool:
        """Lays single texts in one sequence each; returns False if some are to be read in windows, by their pieces."""
        room = tokenizer.room(1, self.facts.max_length)
        lengths = [*map(len, ids)]
        if self.asked.whole and max(lengths, default=0) > room:
            self.pieces = [Pieces((text_ids,), (len(text_ids),)) for text_ids in ids]
            return False
        before, after = tokenizer.around or ([], [])
        self.ids = [before + text_ids[:room] + after for text_ids in ids]
        tokens = [*map(len, self.ids)]
        self.keys = [*zip(self.texts, tokens, strict=True)]
        columns = self.texts, repeat(self.facts), repeat(self.asked), tokens, map(room.__lt__, lengths)
        self.items = [*map(Question, *columns)]
        return True

    def _lay_pieces(self, tokenizer: Tokenizer, once: CutOnce) -> None:
        facts, asked = self.facts, self.asked
        ids, types, seconds, keys, items = [], [], [], [], []
        for text, pieces in zip(self.texts, self.pieces or (), strict=True):
            cuts, windows = expand(pieces, facts, tokenizer, asked)
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
        self.types = types if any(map(any, types)) else None


def expand(pieces: Pieces, facts: Facts, tokenizer: Tokenizer, asked: Asked) -> tuple[Sequence[Cut], bool]:
    """Returns the pieces of each sequence to run, and whether these are windows, or else the beginning of the input."""
    window = window_of(facts, facts.max_length, asked)
    if window is None:
        kept = tokenizer.fit(pieces, facts.max_length)
        if not asked.whole or not tokenizer.measure(pieces, kept)[1]:
            return (kept,), False
        window = whole_window(facts, facts.max_length)
    return window_cuts(tokenizer, pieces, window.tokens, window.overlap), True
