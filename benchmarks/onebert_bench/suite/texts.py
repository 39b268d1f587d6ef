"""Texts to measure on: from real data if a folder is given, else made of words, with the same lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onebert_bench.workload import whole_words
from onebert_encoder.base.base import Base
from onebert_encoder.text.tokens import Text
from onebert_store.tables.tables import read_source

MAX_LENGTH = 256
"""Longest text in tokens, to which all are cut: the default base's own limit."""


@dataclass(frozen=True)
class Mix:
    """A kind of text.

    Attributes:
        deciles: lengths in tokens in the real data, by the default base's tokenizer with special tokens: the shortest,
            nine deciles, the longest; cut at `MAX_LENGTH`.
        pair: whether each text is a pair.
        split: the split of the real data that is used.
    """

    deciles: tuple[int, ...]
    pair: bool
    split: str


MIXES: Mapping[str, Mix] = {
    # Of a few words, like a search query: made up in every run.
    "short": Mix((11,) * 11, pair=False, split="validation"),
    "sst2": Mix((4, 12, 16, 19, 21, 24, 27, 30, 34, 40, 55), pair=False, split="validation"),
    "mrpc": Mix((19, 35, 41, 45, 49, 53, 57, 61, 65, 70, 104), pair=True, split="test"),
    "imdb": Mix((39, 117, 153, 171, 196, 226, 256, 256, 256, 256, 256), pair=False, split="test"),
}


def texts(base: Base, mix: str, count: int, data: Path | None = None, seed: int = 0) -> list[Text]:
    """Texts of a mix: drawn from `data/<mix>` if that folder is there, else generated."""
    if data is not None and (data / mix).is_dir():
        return _drawn(data / mix, MIXES[mix], count, seed)
    return _generated(base, MIXES[mix], count, seed)


def lengths(mix: Mix, count: int, seed: int) -> list[int]:
    """Lengths in tokens with the mix's deciles."""
    shares = np.random.default_rng(seed).random(count)
    grid = np.linspace(0, 1, len(mix.deciles))
    return [round(length) for length in np.interp(shares, grid, mix.deciles)]


def _drawn(folder: Path, mix: Mix, count: int, seed: int) -> list[Text]:
    table = read_source(str(folder)).tables[mix.split]
    rows = np.random.default_rng(seed).choice(len(table["sentence1"]), count, replace=False)
    if mix.pair:
        return [(table["sentence1"][row], table["sentence2"][row]) for row in rows]
    return [table["sentence1"][row] for row in rows]


def _generated(base: Base, mix: Mix, count: int, seed: int) -> list[Text]:
    rng = np.random.default_rng(seed)
    words = whole_words(base)
    special = 3 if mix.pair else 2
    made: list[Text] = []
    for length in lengths(mix, count, seed):
        chosen = [str(word) for word in rng.choice(words, max(length - special, special - 1))]
        half = len(chosen) // 2
        made.append((" ".join(chosen[:half]), " ".join(chosen[half:])) if mix.pair else " ".join(chosen))
    return made
