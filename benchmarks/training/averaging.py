"""Measures evaluations of the values of a step beside evaluations of their mean over the last steps.

    python benchmarks/training/averaging.py --data FOLDER [--rows 1000] [--seeds 2] [--sets NAME ...]

Both are of equal steps: a run with `averaging = 0` and one with a mean take the same ones. Rows that no one trains on
come from the training split, 300 to measure at every evaluation and 1,000 for the evaluation that is kept, so that no
test row has a part in the choice. All else is what `onebert train --start fresh` does.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np

from onebert_bench.pages import markdown_table
from onebert_encoder.base.base import load_base
from onebert_store.errors import OneBertError
from onebert_store.tables.columns import Columns
from onebert_training.data.dataset import Dataset, load_dataset
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import ignore, train_together
from onebert_training.fit.result import Result
from onebert_training.fit.run import Run
from onebert_training.fit.settings import AVERAGING, Settings

SHARES = (0.0, AVERAGING)
JUDGING, MEASURED = 300, 1000


def main() -> None:
    """Trains what was asked for and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--sets", nargs="+", default=["sst2", "cola", "trec6", "banking77"])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    base, lines = load_base(), []
    for name in arguments.sets:
        inputs = TaskInputs(base, spare(arguments.data / name, arguments.rows), Settings().max_length)
        asked = [Settings(averaging=share, seed=seed) for share in SHARES for seed in range(arguments.seeds)]
        runs = [Run(inputs, one, name) for one in asked]
        results = dict(train_together(runs, len(runs), ignore, lambda _: None))
        for share in SHARES:
            lines.append(line(name, share, [(run, results[run]) for run in runs if run.settings.averaging == share]))
            print(lines[-1], flush=True)
    header = ["data", "share of the steps", "evaluations", "their mean", "the worst of the second half", "kept"]
    print(markdown_table(header, lines))


def spare(folder: Path, rows: int) -> Dataset:
    """So many training rows, and others of the training split in the place of validation and test."""
    whole = load_dataset(str(folder), Columns())
    train = whole.splits["train"]
    order = np.random.default_rng(0).permutation(len(train))
    ends = np.cumsum([0, rows, JUDGING, MEASURED])
    names = ("train", "validation", "test")
    return replace(
        whole, splits={name: train.take(np.sort(order[ends[i] : ends[i + 1]])) for i, name in enumerate(names)}
    )


def line(name: str, share: float, done: Sequence[tuple[Run, Result | OneBertError]]) -> list[str]:
    """A line of the table: means over the seeds, in points."""
    found = []
    for run, result in done:
        if isinstance(result, OneBertError):
            raise result
        curve = [entry["validation"][run.metric] for entry in result.history]
        kept = (result.test or {})[run.metric]
        found.append([mean(curve), min(curve[len(curve) // 2 :]), kept])
    evaluations = mean(len(result.history) for _, result in done if isinstance(result, Result))
    scores = (f"{100 * mean(column):.1f}" for column in zip(*found, strict=True))
    return [name, f"{share:g}", f"{evaluations:.0f}", *scores]


if __name__ == "__main__":
    main()
