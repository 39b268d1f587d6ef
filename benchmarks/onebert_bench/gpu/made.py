"""Bases and tasks with random weights, made on the spot, so that nothing is fetched."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from onebert_bench.workload import BERT_BASE, MINILM, TINY, base_folder, bitfit_tensors, task_tensors
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.bank import Bank

BASES = (BERT_BASE, MINILM)
# Tasks that are really folded for a large bank; folding thousands would take longer than measuring them.
_FOLDED = 32


@dataclass(frozen=True)
class Made:
    """Where and how large everything is.

    Attributes:
        folder: folder to which bases are written.
        device: `cpu`, `cuda` or `cuda:N`.
        tiny: whether the run only tries whether everything works, with sizes at which its numbers mean nothing.
    """

    folder: Path
    device: str
    tiny: bool

    def count(self, full: int, tiny: int) -> int:
        """The number of sequences, tasks or repetitions: `full`, or `tiny` for a tiny run."""
        return tiny if self.tiny else full

    def base_folder(self, name: str) -> Path:
        """The folder of a base: BERT-base with random weights, or MiniLM-L6."""
        return base_folder(TINY if self.tiny else name, self.folder)

    def base(self, name: str, dtype: torch.dtype = torch.bfloat16, device: str | None = None) -> Base:
        """The base on the device, or another one."""
        return load_base(str(self.base_folder(name)), dtype=dtype, device=device or self.device)


def texts(base: Base, lengths: Iterable[int]) -> list[Tokens]:
    """Texts of random tokens, each an object of its own, as in requests."""
    rng = np.random.default_rng(0)
    return [Tokens(rng.integers(0, base.config.vocab_size, n).tolist(), [0] * n) for n in lengths]


def bank_of(base: Base, method: str, count: int) -> tuple[Bank, list[int]]:
    """A bank with `count` tasks of a method, and their slots."""
    bank = Bank(base)
    with torch.inference_mode():
        return bank, [bank.install(fold(base, task_tensors(base, method, seed))) for seed in range(count)]


def crowd_of(base: Base, count: int) -> tuple[Bank, list[int]]:
    """A bank with `count` BitFit tasks, and their slots; a few tasks are folded, the others are scaled copies."""
    bank = Bank(base)
    with torch.inference_mode():
        folded = [fold(base, bitfit_tensors(base, seed)) for seed in range(min(count, _FOLDED))]
        rows = (folded[i % len(folded)] for i in range(count))
        return bank, [bank.install(replace(row, shift=row.shift * (1 + i / count))) for i, row in enumerate(rows)]
