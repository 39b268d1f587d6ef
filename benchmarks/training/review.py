"""Is labeling the review queue's texts better than labeling random ones? A replay of labeled sets.

    python benchmarks/training/review.py --data FOLDER [--sets trec6 …] [--rounds 5] [--seeds 8]

Each set begins with random rows, two to eight a label. Each round an exact head on the frozen base answers the rest, as
a live version answers traffic; as many rows are labeled, random ones or the first ones of `GET …/review?by=margin`, and
the head is fitted again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from onebert_bench.report import markdown_table
from onebert_bench.script import options, say
from onebert_encoder.answering.results import Prediction
from onebert_encoder.base.base import Base, load_base
from onebert_server.extensions.feedback.ranking import Scored, ranked
from onebert_server.versions.facts import Facts
from onebert_training.data.dataset import Dataset, load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.inputs import frozen_vectors
from onebert_training.heads.exact import Vectors, fit_heads
from onebert_training.target_scale import TargetScale
from onebert_training.tasks.objectives import OBJECTIVES

# Rows that a person could have been asked about, and that the score is measured on.
POOL, TESTED = 2500, 2000
# The strength that cross-validation chooses most often for few rows.
STRENGTH = 0.1

Scores = NDArray[np.float64]
Chooses = Callable[[Scores, int, np.random.Generator], Sequence[int]]
"""Chooses so many rows by their scores [n, labels]."""


@dataclass(frozen=True)
class Rows:
    """One set: vectors [n, h] of the frozen base and label indices [n]."""

    data: Dataset
    pool: Vectors
    gold: NDArray[np.int64]
    tested: Vectors
    tested_gold: NDArray[np.int64]

    @property
    def step(self) -> int:
        """Rows to begin with, and of each round: eight a label, of many labels two."""
        labels = len(self.data.labels)
        return labels * (8 if labels < 20 else 2)


def main() -> None:
    """Prints the mean accuracy by the number of labeled rows, and the lead of the margin over the seeds."""
    asked = options(__doc__, data=Path, sets=["trec6", "sst2", "banking77", "tweet_emotion"], rounds=5, seeds=8)
    base = load_base()
    table = []
    for name in asked.sets:
        rows = _read(base, asked.data / name)
        accuracies = {}
        for order, chooses in ORDERS.items():
            accuracies[order] = np.array([_replay(rows, chooses, asked.rounds, seed) for seed in range(asked.seeds)])
            say(f"{name}: {order}")
        for turn in range(1, asked.rounds + 1):
            random, margin = (100 * scores[:, turn] for scores in accuracies.values())
            lead = margin - random
            error = 2 * lead.std(ddof=1) / len(lead) ** 0.5
            means = [f"{scores.mean():.1f}" for scores in (random, margin)]
            table.append([name, str(rows.step * (turn + 1)), *means, f"{lead.mean():+.1f} ± {error:.1f}"])
    print(markdown_table(["data", "labeled rows", *(f"by {order}" for order in ORDERS), "margin − chance"], table))


def _read(base: Base, folder: Path) -> Rows:
    data = load_dataset(str(folder), DataOptions(train_rows=POOL))
    train, test = data.splits["train"], data.splits.get("test", data.splits["validation"])
    pool, tested = (frozen_vectors(base, texts, 128) for texts in (train.texts, test.texts[:TESTED]))
    return Rows(data, pool, train.gold, tested, test.gold[:TESTED])


def _replay(rows: Rows, chooses: Chooses, rounds: int, seed: int) -> list[float]:
    """Accuracies on unseen rows: of the first rows, and after each round."""
    random = np.random.default_rng(seed)
    labeled = random.permutation(len(rows.pool))[: rows.step]
    accuracies = []
    for turn in range(rounds + 1):
        answer = _fitted(rows, labeled)
        accuracies.append(float((answer(rows.tested).argmax(axis=1) == rows.tested_gold).mean()))
        if turn < rounds:
            rest = np.setdiff1d(np.arange(len(rows.pool)), labeled)
            labeled = np.append(labeled, rest[[*chooses(answer(rows.pool[rest]), rows.step, random)]])
    return accuracies


def _fitted(rows: Rows, labeled: NDArray[np.int64]) -> Callable[[Vectors], Scores]:
    objective = OBJECTIVES["single_label"](rows.data.labels)
    [head] = fit_heads(objective, rows.pool[labeled], rows.gold[labeled], [STRENGTH])
    return lambda vectors: softmax(head.logits(vectors, TargetScale()).astype(np.float64), axis=1)


def _by_chance(scores: Scores, count: int, random: np.random.Generator) -> Sequence[int]:
    return [*random.permutation(len(scores))[:count]]


def _by_margin(scores: Scores, count: int, _: np.random.Generator) -> Sequence[int]:
    names = [str(label) for label in range(scores.shape[1])]
    facts = Facts("replay", 1, "", "", "single_label", names, 128, "mean")
    answers = [[Scored(facts, Prediction(names, row.tolist(), int(row.argmax())))] for row in scores]
    return ranked("margin", answers)[:count]


ORDERS: Mapping[str, Chooses] = {"chance": _by_chance, "margin": _by_margin}


if __name__ == "__main__":
    main()
