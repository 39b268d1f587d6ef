"""Measures evaluations of the values of a step beside evaluations of their mean over the last steps.

    python benchmarks/training/averaging.py --data FOLDER [--sets NAME ...] [--method METHOD] [--rows 1500] [--seeds 2]

Both are of equal steps: a run with `averaging = 0` and one with a mean take the same ones. Each row of the table is
measured after every epoch on 1,000 rows of the training split that no one trains on, so that no test row has a part in
the choice.
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
from onebert_training.fit.run import Run
from onebert_training.fit.settings import AVERAGING, Settings

EPOCHS, MEASURED = 6, 1000


def main() -> None:
    """Trains what was asked for and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--sets", nargs="+", default=["trec6", "sst2", "stsb", "banking77"])
    parser.add_argument("--method", default=Settings().method)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    base, lines = load_base(), []
    for name in arguments.sets:
        inputs = TaskInputs(base, spare(arguments.data / name, arguments.rows), Settings().max_length)
        for averaging in (0.0, AVERAGING):
            settings = Settings(arguments.method, epochs=EPOCHS, evals_per_epoch=1, patience=0, averaging=averaging)
            runs = [Run(inputs, replace(settings, seed=seed), name) for seed in range(arguments.seeds)]
            lines.append(line(runs))
            print(lines[-1], flush=True)
    print(markdown_table(["data", "metric", "mean over", *(f"epoch {i + 1}" for i in range(EPOCHS))], lines))


def spare(folder: Path, rows: int) -> Dataset:
    """So many training rows, and others of the training split in the place of validation."""
    whole = load_dataset(str(folder), Columns())
    train = whole.splits["train"]
    order = np.random.default_rng(0).permutation(len(train))
    trained, measured = (np.sort(some) for some in (order[:rows], order[rows : rows + MEASURED]))
    return replace(whole, splits={"train": train.take(trained), "validation": train.take(measured)})


def line(runs: Sequence[Run]) -> list[str]:
    """A line of the table: the mean of each epoch over the seeds, in points."""
    curves = []
    for run, result in train_together(runs, len(runs), ignore, lambda _: None):
        if isinstance(result, OneBertError):
            raise result
        curves.append([entry["validation"][run.metric] for entry in result.history])
    run = runs[0]
    scores = (f"{100 * mean(epoch):.1f}" for epoch in zip(*curves, strict=True))
    over = f"{run.settings.averaging:.0%} of the steps" if run.settings.averaging else "one step"
    return [run.data.name, run.metric, over, *scores]


if __name__ == "__main__":
    main()
