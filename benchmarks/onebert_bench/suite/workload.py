"""Texts to measure on, drawn from real data or made up with the same lengths, and the files of random tasks."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from onebert_bench.workload import BERT_BASE, LORA, MINILM, base_folder, task_delta, whole_words
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.disk import write_whole
from onebert_store.file.format import dumps
from onebert_store.file.manifest import Pooling
from onebert_store.tables.tables import read_source

MAX_LENGTH = 256
"""Longest text in tokens, to which all are cut: the default base's own limit."""

# Name of a method -> the method as users write it; SPAFIT freezes half of a base's six or twelve layers.
METHODS: Mapping[str, str | Mapping[str, str]] = {
    "BitFit": "bitfit",
    "LayerNorm": "layernorm",
    "LoRA r=8 q, v": LORA,
    "SPAFIT, half": {MINILM: "spafit:2-3-I,r=8,alpha=8", BERT_BASE: "spafit:5-7-I,r=8,alpha=8"},
    "sparse 0.1 %": "random:0.1%",
    "frozen": "frozen",
}


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


class Workload:
    """One base with its tasks and texts.

    Args:
        name: `MINILM`, with its real weights, or a base with random weights.
        work: folder to which bases and deltas are written, where all peers read them.
        data: folder of real texts; None makes texts up.
    """

    def __init__(self, name: str, work: Path, data: Path | None) -> None:
        self._name, self._work, self._data = name, work, data

    @cached_property
    def folder(self) -> Path:
        """The base's files; those that are made or fetched are when they are first needed."""
        return base_folder(self._name, self._work)

    @cached_property
    def base(self) -> Base:
        """The base, for tokenizing and for the shapes of tasks."""
        return load_base(str(self.folder))

    def texts(self, mix: str, count: int) -> list[Text]:
        """Texts of a mix, the same ones at every call."""
        return texts(self.base, mix, count, self._data)

    def tokens(self, mix: str, count: int) -> list[Tokens]:
        """The same texts, tokenized and cut."""
        return self.base.tokenizer.encode(self.texts(mix, count), MAX_LENGTH)

    def files(self, method: str, count: int) -> list[Path]:
        """Delta files of `count` random tasks, as different from the base as trained ones."""
        return [self._file(method, seed) for seed in range(count)]

    def _file(self, method: str, seed: int) -> Path:
        """The head reads BERT's pooler; of a frozen encoder and of other bases it reads the mean, as is usual."""
        meant = METHODS[method]
        text = meant if isinstance(meant, str) else meant[self._name]
        key = hashlib.sha256(repr((self.base.spec.digest, text, seed, MAX_LENGTH)).encode()).hexdigest()[:20]
        file = self._work / "tasks" / f"{key}.safetensors"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            pooling: Pooling = "mean" if method == "frozen" or self.base.spec.model_type != "bert" else "pooler"
            write_whole(file, dumps(task_delta(self.base, text, seed, pooling, MAX_LENGTH)))
        return file


def texts(base: Base, mix: str, count: int, data: Path | None = None) -> list[Text]:
    """Texts of a mix: drawn from `data/<mix>` if that folder is there, else generated."""
    if data is not None and (data / mix).is_dir():
        return _drawn(data / mix, MIXES[mix], count)
    return _generated(base, MIXES[mix], count)


def lengths(mix: Mix, count: int) -> list[int]:
    """Lengths in tokens with the mix's deciles."""
    shares = np.random.default_rng(0).random(count)
    grid = np.linspace(0, 1, len(mix.deciles))
    return [round(length) for length in np.interp(shares, grid, mix.deciles)]


def _drawn(folder: Path, mix: Mix, count: int) -> list[Text]:
    table = read_source(str(folder)).tables[mix.split]
    rows = np.random.default_rng(0).choice(len(table["sentence1"]), count, replace=False)
    if mix.pair:
        return [(table["sentence1"][row], table["sentence2"][row]) for row in rows]
    return [table["sentence1"][row] for row in rows]


def _generated(base: Base, mix: Mix, count: int) -> list[Text]:
    rng = np.random.default_rng(0)
    words = whole_words(base)
    special = 3 if mix.pair else 2
    made: list[Text] = []
    for length in lengths(mix, count):
        chosen = [str(word) for word in rng.choice(words, max(length - special, special - 1))]
        half = len(chosen) // 2
        made.append((" ".join(chosen[:half]), " ".join(chosen[half:])) if mix.pair else " ".join(chosen))
    return made
