"""Writes the table of explanations in benchmarks/results/accuracy.md: how an answer falls without the words behind it.

    python benchmarks/training/faithfulness.py --data FOLDER [--seeds 3] [--texts 100]

The deletion curve (Petsiuk et al. 2018; for words DeYoung et al. 2020, comprehensiveness): a tenth, two tenths, … nine
tenths of a text's words are left out, those first that a method says the answer is owed to most, and the score of the
answer's label is looked at each time. Random orders are the yardstick; the area between both curves is the mean of
their differences. Its interval is that of a bootstrap over texts, each with its mean over the seeds of training.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import reduce
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onebert_bench.pages import markdown_table, write_section
from onebert_encoder.base.base import load_base
from onebert_encoder.explaining.texts import TextExplainer
from onebert_encoder.explaining.words import Explanation, Stretch, without
from onebert_encoder.text.tokens import Text
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.data.splitting import SPLIT_SEED, subset
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import train
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "accuracy.md"
# Data set -> the split whose texts are explained; both have the label names of their test or validation rows.
SETS = {"sst2": "validation", "trec6": "test"}
ROWS, EPOCHS, RANDOM_ORDERS, RESAMPLES = 1000, 4, 5, 10_000
SHARES = np.arange(1, 10) / 10
# Of fewer words a tenth is no step.
FEWEST = 5
METHODS: dict[str, Callable[[TextExplainer, Text], Explanation]] = {
    "without each word": TextExplainer.by_occlusion,
    "gradient × input": TextExplainer.by_gradient,
}

Array = NDArray[np.float64]


def main() -> None:
    """Measures both methods on both sets and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=100)
    arguments = parser.parse_args()
    base = load_base()
    lines = []
    for name, split in SETS.items():
        dataset = load_dataset(str(arguments.data / name), DataOptions(train_rows=ROWS))
        inputs = TaskInputs(base, dataset, Settings().max_length)
        texts = subset(dataset.splits[split], dataset.task_type, arguments.texts, SPLIT_SEED).texts
        measured, scores = [], []
        for seed in range(arguments.seeds):
            result = train(Run(inputs, Settings(method="bitfit", epochs=EPOCHS, evals_per_epoch=1, seed=seed), name))
            if result.delta is None:
                raise SystemExit("BitFit gives a delta")
            explainer = TextExplainer.of(base, result.delta)
            long = [text for text in texts if len(explainer.words(text)) >= FEWEST]
            measured.append([curves(explainer, text, np.random.default_rng(at)) for at, text in enumerate(long)])
            scores.append(dict(result.test or result.validation)["accuracy"])
        # [texts, methods and random, shares], the mean over seeds
        of_texts = np.mean(measured, axis=0)
        for at, method in enumerate(METHODS):
            line = [name, f"{np.mean(scores):.3f}", str(len(of_texts)), method]
            line += [f"{of_texts[:, row, share].mean():.3f}" for share in (0, 2, 4) for row in (at, len(METHODS))]
            lines.append([*line, area_between(of_texts[:, at], of_texts[:, len(METHODS)])])
            print(lines[-1], flush=True)
    places = [f"{what} {share} %" for share in (10, 30, 50) for what in ("left out", "random")]
    header = ["data", "accuracy", "texts", "method", *places, "area between (95 %)"]
    write_section(PAGE, "faithfulness", markdown_table(header, lines))


def curves(explainer: TextExplainer, text: Text, rng: np.random.Generator) -> Array:
    """[methods and random, shares]: the score of the answer's label, without so many words."""
    words, [whole] = explainer.words(text), explainer.answers([text])
    found = []
    for explain in METHODS.values():
        effects = [one.effect for one in explain(explainer, text).words]
        found.append(curve(explainer, text, words, np.argsort(effects)[::-1], whole.best))
    drawn = [curve(explainer, text, words, rng.permutation(len(words)), whole.best) for _ in range(RANDOM_ORDERS)]
    return np.stack([*found, np.mean(drawn, axis=0)])


def curve(
    explainer: TextExplainer, text: Text, words: Sequence[Stretch], order: NDArray[np.int64], label: int
) -> Array:
    """[shares], the score of a label when the first words of an order are left out; at least one word stays."""
    gone = [order[: min(ceil(share * len(words)), len(words) - 1)] for share in SHARES]
    # From the last word on, so that the places of those before it stay what they are.
    left = [reduce(without, (words[at] for at in sorted(some, reverse=True)), text) for some in gone]
    return np.array([one.scores[label] for one in explainer.answers(left)])


def area_between(method: Array, random: Array) -> str:
    """The mean over texts and shares of what the random curve is higher, with its interval."""
    of_texts = (random - method).mean(axis=1)
    drawn = np.random.default_rng(0).choice(of_texts, (RESAMPLES, len(of_texts))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{of_texts.mean():.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
