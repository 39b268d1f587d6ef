"""Is labeling the review queue's texts better than labeling texts by chance? A replay of labeled sets.

    python benchmarks/training/review.py --data FOLDER [--sets trec6 …] [--rounds 5] [--seeds 8]

Each set begins with rows drawn by chance, two to eight a label. Each round an exact head on the frozen base answers the
rest, as a live version answers traffic; as many rows are labeled by an order of `GET …/review`, or by chance, and the
head is fitted again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from onebert_bench.report import markdown_table
from onebert_bench.script import options, say
from onebert_encoder.answering.results import Prediction
from onebert_encoder.base.base import Base, load_base
from onebert_server.engine.probe import probe
from onebert_server.feedback.ranking import By, Scored, farthest_first, ranked
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


class Open(NamedTuple):
    """Rows to choose from: scores [n, labels] and the probe's vectors [n, outputs]; the vectors of labeled rows."""

    scores: NDArray[np.float64]
    vectors: NDArray[np.float64]
    labeled: NDArray[np.float64]


Chooses = Callable[[Open, int, np.random.Generator], Sequence[int]]


@dataclass(frozen=True)
class Rows:
    """One set: vectors [n, h] of the frozen base, [n, outputs] of the server's probe, and label indices [n]."""

    data: Dataset
    pool: Vectors
    probed: NDArray[np.float64]
    gold: NDArray[np.int64]
    tested: Vectors
    tested_gold: NDArray[np.int64]

    @property
    def step(self) -> int:
        """Rows to begin with, and of each round: eight a label, of many labels two."""
        labels = len(self.data.labels)
        return labels * (8 if labels < 20 else 2)


def main() -> None:
    """Prints the mean accuracy by the number of labeled rows, and its difference from chance over the seeds."""
    asked = options(__doc__, data=Path, sets=["trec6", "sst2", "banking77", "tweet_emotion"], rounds=5, seeds=8)
    base = load_base()
    table = []
    for name in asked.sets:
        rows = _read(base, asked.data / name)
        found = {}
        for how, chooses in ORDERS.items():
            found[how] = np.array([_replay(rows, chooses, asked.rounds, seed) for seed in range(asked.seeds)])
            say(f"{name}: {how}")
        for turn in range(1, asked.rounds + 1):
            at = {how: 100 * scores[:, turn] for how, scores in found.items()}
            leads = [_lead(at[how] - at["chance"]) for how in at if how != "chance"]
            means = [f"{scores.mean():.1f}" for scores in at.values()]
            table.append([name, str(rows.step * (turn + 1)), *means, *leads])
    others = [f"{how} − chance" for how in ORDERS if how != "chance"]
    print(markdown_table(["data", "labeled rows", *(f"by {how}" for how in ORDERS), *others], table))


def _lead(each: NDArray[np.float64]) -> str:
    return f"{each.mean():+.1f} ± {2 * each.std(ddof=1) / len(each) ** 0.5:.1f}"


def _read(base: Base, folder: Path) -> Rows:
    data = load_dataset(str(folder), DataOptions(train_rows=POOL))
    test = data.splits.get("test", data.splits["validation"])
    texts = data.splits["train"].texts, test.texts[:TESTED]
    vectors = [frozen_vectors(base, each, 128) for each in texts]
    probed = np.asarray(vectors[0] @ probe(base).weight.numpy().T, np.float64)
    return Rows(data, vectors[0], probed, data.splits["train"].gold, vectors[1], test.gold[:TESTED])


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
            at = Open(answer(rows.pool[rest]), rows.probed[rest], rows.probed[labeled])
            labeled = np.append(labeled, rest[[*chooses(at, rows.step, random)]])
    return accuracies


def _fitted(rows: Rows, labeled: NDArray[np.int64]) -> Callable[[Vectors], NDArray[np.float64]]:
    objective = OBJECTIVES["single_label"](rows.data.labels)
    [head] = fit_heads(objective, rows.pool[labeled], rows.gold[labeled], [STRENGTH])
    return lambda vectors: softmax(head.logits(vectors, TargetScale()).astype(np.float64), axis=1)


def _by_chance(at: Open, most: int, random: np.random.Generator) -> Sequence[int]:
    return [*random.permutation(len(at.scores))[:most]]


def _by_margin(at: Open, most: int, _: np.random.Generator) -> Sequence[int]:
    names = [str(label) for label in range(at.scores.shape[1])]
    facts = Facts("replay", 1, "", "", "single_label", names, 128, "mean")
    answers = [[Scored(facts, Prediction(names, row, int(row.argmax())))] for row in at.scores]
    return ranked(By.MARGIN, answers)[:most]


def _by_novelty(at: Open, most: int, _: np.random.Generator) -> Sequence[int]:
    return farthest_first(at.vectors, at.labeled, most)


ORDERS: Mapping[str, Chooses] = {"chance": _by_chance, "margin": _by_margin, "novelty": _by_novelty}


if __name__ == "__main__":
    main()
