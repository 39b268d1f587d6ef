"""Bases and tasks with random weights, made on the spot, so that nothing is fetched."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from onebert_bench.workload import BERT_BASE, MINILM, TINY, base_folder
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.text.tokens import Tokens

BASES = (BERT_BASE, MINILM)


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
        """The folder of a base."""
        return base_folder(TINY if self.tiny else name, self.folder)

    def base(self, name: str, dtype: torch.dtype = torch.bfloat16, device: str | None = None) -> Base:
        """The base on the device, or another one."""
        return load_base(str(self.base_folder(name)), dtype=dtype, device=device or self.device)


def texts(base: Base, lengths: Iterable[int]) -> list[Tokens]:
    """Texts of random tokens, each an object of its own, as in requests."""
    rng = np.random.default_rng(0)
    return [Tokens(rng.integers(0, base.config.vocab_size, n).tolist(), [0] * n) for n in lengths]
