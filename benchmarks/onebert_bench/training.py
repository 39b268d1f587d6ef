"""Data to measure trainings on."""

import torch

from onebert_bench.workload import LABELS, sentences
from onebert_encoder.base.base import Base
from onebert_training.data.dataset import Dataset
from onebert_training.data.examples import Split


def made_up(base: Base, rows: int) -> Dataset:
    """Made-up sentences, whose labels alternate."""
    split = Split(tuple(sentences(base, rows)), torch.arange(rows).remainder(2).numpy())
    return Dataset("sentences", "single_label", LABELS, None, {"train": split, "validation": split})
