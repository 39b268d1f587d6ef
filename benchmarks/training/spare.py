"""Measures settings of a training, epoch by epoch, on rows of the training split that no one trains on.

    python benchmarks/training/spare.py --data FOLDER [--sets NAME ...] [--rows 1500] [--seeds 2]
        --with method=bitfit --with method=bitfit averaging=0

A default can be chosen by these 1,000 rows, since no test row has a part in it. Each `--with` is a line of the table;
its settings are named as in a recipe, and what it does not name is the default.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from onebert_bench.pages import markdown_table
from onebert_encoder.base.base import load_base
from onebert_store.errors import OneBertError
from onebert_training.data.dataset import Dataset, load_dataset
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import ignore, train_together
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings

MEASURED = 1000


def main() -> None:
    """Trains what was asked for and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument(
        "--sets", nargs="+", default=["trec6", "sst2", "banking77", "tweet_emotion", "cola", "mrpc", "stsb"]
    )
    parser.add_argument(
        "--with", nargs="+", action="append", required=True, type=setting, metavar="NAME=VALUE", dest="said"
    )
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    arguments = parser.parse_args()
    base, lines = load_base(dtype=getattr(torch, arguments.dtype)), []
    for name in arguments.sets:
        inputs = TaskInputs(base, spare(arguments.data / name, arguments.rows), Settings().max_length)
        for said in map(dict, arguments.said):
            settings = Settings(**{"epochs": arguments.epochs, "evals_per_epoch": 1, **said})
            runs = [Run(inputs, replace(settings, seed=seed), name) for seed in range(arguments.seeds)]
            lines.append(
                [name, runs[0].metric, ", ".join(f"{key} {value}" for key, value in said.items()), *scores(runs)]
            )
            print(lines[-1], flush=True)
    epochs = (f"epoch {i + 1}" for i in range(arguments.epochs))
    print(markdown_table(["data", "metric", "settings", *epochs], lines))


def setting(text: str) -> tuple[str, Any]:
    """Reads `learning_rate=1e-3` as a name and a number; what is no JSON is text.

    Raises:
        argparse.ArgumentTypeError: no setting has that name.
    """
    name, _, value = text.partition("=")
    if name not in (known := [field.name for field in fields(Settings)]):
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def spare(folder: Path, rows: int) -> Dataset:
    """So many training rows, and others of the training split in the place of validation."""
    whole = load_dataset(str(folder))
    train = whole.splits["train"]
    order = np.random.default_rng(0).permutation(len(train))
    trained, measured = (np.sort(some) for some in (order[:rows], order[rows : rows + MEASURED]))
    splits = {"train": train.take(trained), "validation": train.take(measured)}
    return replace(whole, splits=splits, held_out=False)  # what is measured, no head is fitted on


def scores(runs: Sequence[Run]) -> list[str]:
    """The mean over the seeds of each epoch's score, in points, and behind the last one the spread."""
    curves = []
    for run, result in train_together(runs, len(runs), ignore, lambda _: None):
        if isinstance(result, OneBertError):
            raise result
        # An exact head takes no step, and has no history.
        measured = [entry["validation"] for entry in result.history] or [result.validation]
        curves.append([100 * one[run.metric] for one in measured])
    epochs = list(zip(*curves, strict=True))
    return [f"{mean(epoch):.1f}" for epoch in epochs[:-1]] + [
        f"{mean(epochs[-1]):.1f} ({min(epochs[-1]):.1f}–{max(epochs[-1]):.1f})"
    ]


if __name__ == "__main__":
    main()
