"""Text to token ids: the base's own tokenizer, with truncation that is reported and safe in threads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import tokenizers

Text = str | tuple[str, str]
Span = tuple[int, int]
Placed = tuple[Span, int | None, int | None]
"""A token's span, its word's number and its half."""

_SPECIAL: Placed = ((0, 0), None, None)


@dataclass(frozen=True, eq=False)
class Alignment:
    """Where each token lies in the text.

    Attributes:
        offsets: `text[a:b]` of the token's own half, in code points, without whitespace around it; empty for special
            tokens, and for whitespace alone, which lies at the end of the token before.
        words: the tokenizer's word number within the half; None for special tokens.
        sequences: which half, 0 or 1; None for special tokens. Not the segment, which is 0 in every RoBERTa.
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
    """

    input_ids: list[int]
    type_ids: list[int]
    truncated: bool = False
    alignment: Alignment | None = None

    def __len__(self) -> int:
        return len(self.input_ids)


class Tokenizer:
    """The base's fast tokenizer.

    Truncation is done here and not by `enable_truncation`, which changes the shared tokenizer and is not safe while
    other threads encode; `max_length` differs from task to task.
    """

    def __init__(self, backend: tokenizers.Tokenizer, has_types: bool) -> None:
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self._has_types = has_types

    def dumps(self) -> str:
        """All of it as JSON, for a process that has tokens to make but no base."""
        return json.dumps({"tokenizer": self._backend.to_str(), "has_types": self._has_types})

    @classmethod
    def loads(cls, text: str) -> "Tokenizer":
        """The tokenizer that `dumps` wrote."""
        stored = json.loads(text)
        return cls(tokenizers.Tokenizer.from_str(stored["tokenizer"]), stored["has_types"])

    def encode(self, texts: Sequence[Text], max_length: int, align: bool = False) -> list[Tokens]:
        """Tokenizes texts or pairs, cut to `max_length` tokens (a pair loses from its longer half first).

        Args:
            texts: texts or pairs.
            max_length: in tokens, special tokens included.
            align: whether to say where each token lies in its text.
        """
        encodings = self._backend.encode_batch(list(texts))
        return [
            self._whole(text, encoding, align)
            if len(encoding.ids) <= max_length
            else self._cut(text, max_length, align)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _whole(self, text: Text, encoding: tokenizers.Encoding, align: bool) -> Tokens:
        alignment = None
        if align:
            placed = zip(encoding.offsets, encoding.word_ids, encoding.sequence_ids, strict=True)
            alignment = _alignment(text, list(placed))
        return Tokens(encoding.ids, self._type_ids(encoding), alignment=alignment)

    def _cut(self, text: Text, max_length: int, align: bool) -> Tokens:
        parts = [self._backend.encode(half, add_special_tokens=False) for half in _halves(text)]
        room = max(max_length - self._backend.num_special_tokens_to_add(len(parts) == 2), 0)
        for part, keep in zip(parts, longest_first([len(part.ids) for part in parts], room), strict=True):
            part.truncate(keep)
        encoding = self._backend.post_process(parts[0], parts[1] if len(parts) == 2 else None)
        alignment = None
        if align:
            # By the parts: post-processing would trim byte-level offsets a second time, and forgets where halves begin.
            own = chain(*(zip(part.offsets, part.word_ids, repeat(half)) for half, part in enumerate(parts)))
            placed = [_SPECIAL if special else next(own) for special in encoding.special_tokens_mask]
            alignment = _alignment(text, placed)
        return Tokens(encoding.ids, self._type_ids(encoding), truncated=True, alignment=alignment)

    def _type_ids(self, encoding: tokenizers.Encoding) -> list[int]:
        return encoding.type_ids if self._has_types else [0] * len(encoding.ids)


def _halves(text: Text) -> Sequence[str]:
    return (text,) if isinstance(text, str) else text


def _alignment(text: Text, placed: Sequence[Placed]) -> Alignment:
    """Takes the whitespace off the spans, which some tokenizers count in."""
    halves = _halves(text)
    ends = [0, 0]
    offsets = []
    for (start, stop), _, half in placed:
        if half is None:
            offsets.append((0, 0))
            continue
        piece = halves[half][start:stop]
        inner = piece.strip()
        begin = start + piece.index(inner) if inner else ends[half]
        ends[half] = begin + len(inner)
        offsets.append((begin, ends[half]))
    return Alignment(offsets, [word for _, word, _ in placed], [half for _, _, half in placed])


def longest_first(lengths: Sequence[int], room: int) -> list[int]:
    """How much of one or two sequences to keep so that they fill `room`: the longer gives first.

    The last token of an odd room goes to the half that was longer (to the second when they were equal), as the
    `longest_first` strategy of Hugging Face tokenizers does.
    """
    if len(lengths) == 1 or sum(lengths) <= room:
        return [min(length, room) for length in lengths]
    shorter = min(lengths)
    kept = min(shorter, room // 2)
    if lengths[0] > lengths[1]:
        return [room - kept, kept]
    return [kept, room - kept]
