"""The forms of a tokenized input: pieces of its texts, and the tokens of the sequences that they are cut to."""

from dataclasses import dataclass
from typing import Protocol

# In arrays, a token's segment is above these bits of its id.
SEGMENT_BITS = 24

Text = str | tuple[str, str]
"""One text, or a pair of them."""


def text_of(first: str, second: str | None = None) -> Text:
    """Returns a text, or the pair of it and a second one."""
    return first if second is None else (first, second)


def halves_of(text: Text) -> tuple[str, ...]:
    """Returns the one text, or both of a pair."""
    return (text,) if isinstance(text, str) else text


def named_halves(text: Text) -> dict[str, str]:
    """Returns a text by the names of its fields in JSON: `text`, and `text_pair` of a pair."""
    return dict(zip(("text", "text_pair"), halves_of(text), strict=False))


Span = tuple[int, int]
Cut = tuple[Span, ...]
"""The half-open range of pieces to keep of each half; (-b, a) keeps the first `a` pieces and the last `b`."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """Positions of the tokens in the text.

    Attributes:
        offsets: (a, b): the token is `text[a:b]` of its half, in code points, stripped, with the combining marks behind
            it that no token has. Empty for special tokens; empty at the previous token's end for whitespace.
        words: index of the token's word in its half; None for special tokens.
        sequences: half, 0 or 1; None for special tokens. (`type_ids` do not tell: in RoBERTa they are all 0.)
    """

    offsets: list[Span]
    words: list[int | None]
    sequences: list[int | None]


@dataclass(frozen=True, eq=False)
class Tokens:
    """A tokenized input, compared by identity; `type_ids` segments; `second` start of a pair's own sequence, else 0."""

    input_ids: list[int]
    type_ids: list[int]
    truncated: bool = False
    alignment: Alignment | None = None
    second: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)


class Placed(Protocol):
    """Offsets of a half's pieces in code points, and the indices of their words; a `tokenizers.Encoding` has both."""

    @property
    def offsets(self) -> list[Span]: ...

    @property
    def word_ids(self) -> list[int | None]: ...


@dataclass(frozen=True, eq=False)
class Source:
    """The text of a half and the positions of its pieces; needed only by per-token tasks."""

    half: str
    placed: Placed


@dataclass(frozen=True, eq=False)
class Pieces:
    """One text or pair as split by the tokenizer: without special tokens, not yet truncated to a task's length.

    Attributes:
        ids: token ids of each half; only the beginning of a very long half.
        lengths: number of pieces of each half before any truncation.
        sources: empty in a process that received the ids alone.
    """

    ids: tuple[list[int], ...]
    lengths: tuple[int, ...]
    sources: tuple[Source, ...] = ()
