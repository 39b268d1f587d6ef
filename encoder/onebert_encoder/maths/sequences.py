"""The inputs of a batch as arrays: their token ids end to end, and the length of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from onebert_encoder.layout.upload import Array
from onebert_encoder.text.tokens import Tokens

_ID_BITS = 24


@dataclass(frozen=True, slots=True)
class Sequences:
    """Tokenized inputs.

    Attributes:
        ids: [tokens] int32, the inputs end to end; a token's id, with its segment in the top byte.
        lengths: [inputs], tokens of each input.
        second: [inputs], start of a pair's own sequence, else 0.
        text: [inputs], equal numbers are one text, which several tasks share.
    """

    ids: Array
    lengths: Array
    second: Array
    text: Array

    @classmethod
    def of(cls, tokens: Sequence[Tokens]) -> "Sequences":
        """Inputs of which an object that occurs several times is one text."""
        count = len(tokens)
        lengths = np.fromiter(map(len, tokens), np.int64, count)
        ids = np.array(list(chain.from_iterable(text.input_ids for text in tokens)), dtype=np.int32)
        if any(any(text.type_ids) for text in tokens):
            ids |= np.array(list(chain.from_iterable(text.type_ids for text in tokens)), dtype=np.int32) << _ID_BITS
        second = np.fromiter((text.second for text in tokens), np.int64, count)
        return cls(ids, lengths, second, np.fromiter(map(id, tokens), np.int64, count))

    def parts(self) -> "Sequences":
        """The sequences to encode: each input, or each text of a pair whose texts are two sequences."""
        (pairs,) = self.second.nonzero()
        if not len(pairs):
            return self
        first = self.first_parts[pairs]
        lengths, text = (np.repeat(of_input, 1 + (self.second > 0)) for of_input in (self.lengths, 2 * self.text))
        lengths[first] = self.second[pairs]
        lengths[first + 1] -= self.second[pairs]
        text[first + 1] += 1
        return Sequences(self.ids, lengths, np.zeros_like(lengths), text)

    @property
    def first_parts(self) -> Array:
        """[inputs], the index of each input's first sequence among `parts`."""
        return np.arange(len(self.lengths)) + np.cumsum(self.second > 0) - (self.second > 0)


def ids_of(tokens: Array) -> Array:
    """The ids of tokens as `Sequences` has them."""
    return tokens & (1 << _ID_BITS) - 1


def segments_of(tokens: Array) -> Array:
    """The segments of tokens as `Sequences` has them."""
    return tokens >> _ID_BITS
