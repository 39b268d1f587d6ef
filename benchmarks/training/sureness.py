"""How sure are tasks of few rows? With the temperature that their folds gave, and without it.

    python benchmarks/training/sureness.py --data FOLDER --work FOLDER [--sets sst2 …] [--per-class 8 16] [--seeds 0 …]

The rows of a set are those of `beside.py --per-class`, trained on by `onebert train`'s defaults and by the exact head
alone. Log loss and expected calibration error (15 bins of equal width, Guo et al. 2017) are of up to `--rows` test
texts. A finished training is a file in the work folder, and a second call trains only what is missing.
"""

from argparse import Namespace
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np
from beside import ONEBERT_SIDE, Cell, rows_of, unvalidated
from scipy.special import softmax
from sklearn.metrics import log_loss

from onebert_bench.report import markdown_table
from onebert_bench.script import options, say
from onebert_encoder.base.base import Base, load_base
from onebert_store.file.format import load
from onebert_training.data.options import DataOptions
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.fit.settings import DEFAULT_METHOD, Settings
from onebert_training.insight.findings import expected_calibration_error
from onebert_training.prepared import prepare
from onebert_training.selection.selection import train_and_select

METHODS = (DEFAULT_METHOD, "head")


def main() -> None:
    """Prints a line for each set, number of rows and method: means over the seeds."""
    arguments = options(
        __doc__, data=Path, work=Path, sets=["sst2"], per_class=[8, 16], seeds=[0], rows=400, methods=[*METHODS]
    )
    base, table = load_base(), []
    for name, rows, method in product(arguments.sets, arguments.per_class, arguments.methods):
        each = list(_measured(base, arguments, name, rows, method))
        means = [mean(column) for column in zip(*each, strict=True)]
        table.append([f"{name}-{rows}", method, f"{100 * means[0]:.1f}", *(f"{number:.2f}" for number in means[1:])])
        say(f"{name}-{rows}, {method}: {len(each)} seeds")
    heads = ["data", "method", "accuracy", "temperature", "log loss without", "with it", "ECE without", "with it"]
    print(markdown_table(heads, table))


def _measured(base: Base, arguments: Namespace, name: str, rows: int, method: str) -> Iterator[list[float]]:
    """Of each seed: accuracy, temperature, and log loss and calibration error without and with it."""
    for seed in arguments.seeds:
        folder = rows_of(Cell(name, ONEBERT_SIDE, seed, rows), arguments.data, arguments.work)
        out = arguments.work / f"{name}-{rows}-{method}-{seed}.safetensors"
        if not out.exists():
            job = prepare(name, str(folder), DataOptions(), Settings(method=method, seed=seed), base, out=out)
            job.finish(train_and_select(job.run))
        delta, test = load(out), unvalidated(folder).splits["test"]
        tokens = tokenize(base, delta.manifest, test.texts[: arguments.rows])
        logits, gold = np.stack(predict_delta(base, delta, tokens)).astype(np.float64), test.gold[: arguments.rows]
        decision = delta.manifest.decision
        temperature = (decision.temperature if decision else None) or 1.0
        right = logits.argmax(axis=1) == gold
        scores = [softmax(logits / each, axis=1) for each in (1.0, temperature)]
        losses = [float(log_loss(gold, each, labels=range(logits.shape[1]))) for each in scores]
        errors = [expected_calibration_error(each.max(axis=1), right) for each in scores]
        yield [float(right.mean()), temperature, *losses, *errors]


if __name__ == "__main__":
    main()
