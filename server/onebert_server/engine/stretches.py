"""Arrays in which each request, or each of its sequences, has a stretch."""

from typing import Any

import numpy as np

from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.flat import ranges

# Least entries of an array; memory that is never written costs nothing.
_ENTRIES = 2**15


class Stretches:
    """An array that is written behind its `end`; the stretches in it stay where they are until they are packed."""

    def __init__(self, dtype: Any) -> None:
        self.array = np.empty(_ENTRIES, dtype)
        self.end = 0

    def fits(self, more: int) -> bool:
        return self.end + more <= len(self.array)

    def append(self, values: Array) -> int:
        """Writes values behind the others; returns where they begin."""
        start = self.end
        self.end += len(values)
        self.array[start : self.end] = values
        return start

    def pack(self, starts: Array, lengths: Array, more: int) -> Array:
        """Keeps these stretches alone, one behind the other, with room for `more` entries; returns their starts."""
        kept = self.array[ranges(starts, lengths)]
        self.array, self.end = np.empty(max(2 * (len(kept) + more), _ENTRIES), self.array.dtype), 0
        self.append(kept)
        return np.asarray(np.cumsum(lengths) - lengths)
