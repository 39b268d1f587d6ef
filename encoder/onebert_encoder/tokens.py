"""Text to token ids: the base's own tokenizer, with truncation that is reported and safe in threads."""

from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers

Text = str | tuple[str, str]


@dataclass(frozen=True, eq=False)
class Tokens:
    """One tokenized input; compared by identity, so that one text sent to many tasks can share work.

    Attributes:
        input_ids: ids with the special tokens.
        type_ids: segment of each token, 0 or 1.
        truncated: whether the text was longer than `max_length`.
    """

    input_ids: list[int]
    type_ids: list[int]
    truncated: bool = False

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

    def encode(self, texts: Sequence[Text], max_length: int) -> list[Tokens]:
        """Tokenizes texts or pairs, cut to `max_length` tokens (a pair loses from its longer half first)."""
        encodings = self._backend.encode_batch(list(texts))
        return [
            self._tokens(encoding)
            if len(encoding.ids) <= max_length
            else self._tokens(self._cut(text, max_length), truncated=True)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _tokens(self, encoding: tokenizers.Encoding, truncated: bool = False) -> Tokens:
        ids = encoding.ids
        return Tokens(ids, encoding.type_ids if self._has_types else [0] * len(ids), truncated)

    def _cut(self, text: Text, max_length: int) -> tokenizers.Encoding:
        halves = [text] if isinstance(text, str) else list(text)
        parts = [self._backend.encode(half, add_special_tokens=False) for half in halves]
        room = max(max_length - self._backend.num_special_tokens_to_add(len(parts) == 2), 0)
        for part, keep in zip(parts, longest_first([len(part.ids) for part in parts], room), strict=True):
            part.truncate(keep)
        return self._backend.post_process(parts[0], parts[1] if len(parts) == 2 else None)


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
