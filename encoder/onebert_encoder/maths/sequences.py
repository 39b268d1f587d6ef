"""The inputs of a batch as arrays: their token ids end to end, and the length of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from onebert_encoder.layout.upload import Array
from onebert_encoder.text.tokens import SEGMENT_BITS, Tokens


@dataclass(frozen=True, slots=True)
class Sequences:
    """Tokenized inputs.

    Attributes:
        ids: [tokens] int32, the inputs end to end; a token's id, with its segment above `SEGMENT_BITS`.
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
        """Makes the inputs' sequences; an object that occurs several times is one text."""
        count = len(tokens)
        lengths = np.fromiter(map(len, tokens), np.int64, count)
        ids = np.array(list(chain.from_iterable(text.input_ids for text in tokens)), dtype=np.int32)
        if any(any(text.type_ids) for text in tokens):
            ids |= np.array(list(chain.from_iterable(text.type_ids for text in tokens)), dtype=np.int32) << SEGMENT_BITS
        second = np.fromiter((text.second for text in tokens), np.int64, count)
        return cls(ids, lengths, second, np.fromiter(map(id, tokens), np.int64, count))

    def parts(self) -> tuple["Sequences", Array]:
        """The sequences to encode, and the index of each input's first one.

        An input is one sequence, or two if each text of a pair is its own.
        """
        every = np.arange(len(self.lengths))
        (pairs,) = self.second.nonzero()
        if not len(pairs):
            return self, every
        is_pair = self.second > 0
        first = every + np.cumsum(is_pair) - is_pair
        of = np.repeat(every, 1 + is_pair)
        lengths, text = self.lengths[of], 2 * self.text[of].astype(np.int64)
        lengths[first[pairs]] = self.second[pairs]
        lengths[first[pairs] + 1] -= self.second[pairs]
        text[first[pairs] + 1] += 1
        return Sequences(self.ids, lengths, np.zeros_like(lengths), text), first


def ids_of(tokens: Array) -> Array:
    """The ids of tokens as `Sequences` has them."""
    return tokens & (1 << SEGMENT_BITS) - 1


def segments_of(tokens: Array) -> Array:
    """The segments of tokens as `Sequences` has them."""
    return tokens >> SEGMENT_BITS
