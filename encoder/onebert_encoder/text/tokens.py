"""What a tokenized input is: pieces of its texts, and the tokens of the sequences that they are cut to."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

Text = str | tuple[str, str]
Span = tuple[int, int]
Cut = tuple[Span, ...]
"""The range of pieces that is kept of each half: from the first number up to the second."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """Where each token lies in the text.

    Attributes:
        offsets: (a, b) such that the token is `text[a:b]` of its half, in code points, without whitespace around it.
            Empty for special tokens, and for a token of whitespace alone, where both are the end of the token before.
        words: number of the token's word within the half; None for special tokens.
        sequences: which half, 0 or 1; None for special tokens. `type_ids` cannot say: in RoBERTa they are all 0.
    """

    offsets: list[Span]
    words: list[int | None]
    sequences: list[int | None]


@dataclass(frozen=True, eq=False)
class Tokens:
    """One tokenized input; compared by identity, so that one text sent to many tasks can share work.

    Attributes:
        input_ids: ids with the special tokens.
        type_ids: segment of each token, 0 or 1.
        truncated: whether the text was longer than `max_length`.
        alignment: where the tokens lie in the text, if that was asked for.
        second: where the second text of a pair begins whose texts are encoded each on its own; 0 for one sequence.
    """

    input_ids: list[int]
    type_ids: list[int]
    truncated: bool = False
    alignment: Alignment | None = None
    second: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)

    @cached_property
    def sequences(self) -> tuple["Tokens", ...]:
        """What the encoder reads: this input, or each text of a pair whose texts are encoded each on its own."""
        if not self.second:
            return (self,)
        parts = (slice(self.second), slice(self.second, None))
        return tuple(Tokens(self.input_ids[part], self.type_ids[part]) for part in parts)


class Placed(Protocol):
    """Spans of a half's pieces in code points, and the numbers of their words; a `tokenizers.Encoding` is one."""

    @property
    def offsets(self) -> list[Span]: ...

    @property
    def word_ids(self) -> list[int | None]: ...


@dataclass(frozen=True, eq=False)
class Source:
    """The text of a half and where its pieces lie in it; needed only for tasks that answer with offsets."""

    half: str
    placed: Placed


@dataclass(frozen=True, eq=False)
class Pieces:
    """One text or pair as the tokenizer splits it: without special tokens, and not yet cut to a task's length.

    Attributes:
        ids: token ids of each half; of a very long half only the beginning.
        lengths: number of pieces of each half, those that `ids` leaves out included.
        sources: the text of each half; empty in a process that was sent the ids alone.
    """

    ids: tuple[list[int], ...]
    lengths: tuple[int, ...]
    sources: tuple[Source, ...] = ()
