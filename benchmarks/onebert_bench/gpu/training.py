"""Section on training: many runs in one batch against a single run."""

from functools import partial
from statistics import median

import torch

from onebert_bench.gpu.made import BERT_BASE, MINILM, Made
from onebert_bench.gpu.section import Cell, Goal, Section
from onebert_bench.gpu.timing import step_ms
from onebert_bench.workload import sentences
from onebert_encoder.base.base import Base
from onebert_training.data.dataset import Dataset
from onebert_training.data.examples import Split
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import take_step
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import State

_WIDTHS = (1, 2, 4, 8, 16, 32)
_TEXTS = 400


def training(made: Made) -> Section:
    """BitFit and LoRA, with 16 sentences for each run and step."""
    rows: list[list[Cell]] = []
    goals = []
    for name in (BERT_BASE, MINILM):
        inputs = TaskInputs(made.base(name), _data(made.base(name)), 128)
        for method in ("bitfit", "lora:r=8"):
            one = 0.0
            for width in _WIDTHS[: made.scale.count(len(_WIDTHS), 2)]:
                pairs = _pairs(inputs, method, width)
                taken = median(step_ms(partial(take_step, pairs), made.scale.count(8, 1)))
                one = one or taken
                rows.append([name, f"`{method}`", width, taken, taken / one, width * one / taken])
                if (name, method, width) == (BERT_BASE, "bitfit", 16):
                    goals.append(Goal("16 runs in one batch, times of one", taken / one, 3.0, at_least=False))
    about = "Made-up sentences of 24 tokens on average, 16 for each run and step; bfloat16, dropout as the base has it."
    header = ("base", "method", "runs in a batch", "ms a step", "times of one", "runs a second, of one alone")
    return Section("Training", about, header, rows, goals)


def _pairs(inputs: TaskInputs, method: str, width: int) -> list[tuple[Run, State]]:
    runs = [Run(inputs, Settings(method=method, seed=seed, epochs=1000), "x") for seed in range(width)]
    return [(run, State(run.init_values())) for run in runs]


def _data(base: Base) -> Dataset:
    gold = torch.arange(_TEXTS).remainder(2).numpy()
    split = Split(tuple(sentences(base, _TEXTS)), gold)
    return Dataset("sentences", "single_label", ("no", "yes"), None, {"train": split, "validation": split})
