"""Writes the table of label errors in benchmarks/results/accuracy.md: labels changed on purpose, and those found.

    python benchmarks/training/label_errors.py --data FOLDER [--seeds 3]

Of 3,000 training rows of each set, and 20,000 of a large one, one in twenty gets another label: any at random, or one
that is drawn by the probabilities that answers to unchanged labels give it, as people confuse labels. Of as many rows
as were changed, the surest suspects, precision is the share that was changed. The labels that the sets came with have
errors, too, which count as wrong findings.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_bench.pages import markdown_table, write_section
from onebert_encoder.base.base import Base, load_base
from onebert_training.data.dataset import load_dataset
from onebert_training.data.examples import Split
from onebert_training.data.options import DataOptions
from onebert_training.fit.frozen import frozen_vectors
from onebert_training.insight.out_of_fold import Floats, Indices, folds_of, out_of_fold
from onebert_training.insight.suspects import find_suspects

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "accuracy.md"
FEW, MANY = 3000, 20_000
SETS = (
    *(("sst2", FEW), ("sst2", MANY), ("banking77", FEW), ("trec6", FEW)),
    *(("snips_intent", FEW), ("sms_spam", FEW), ("tweet_emotion", FEW)),
)
SHARE, MAX_LENGTH = 0.05, 128


class Found(NamedTuple):
    """What was found of changed rows: precision at n, suspects, the share of them that is suspect, right answers."""

    precision: float
    suspects: int
    recall: float
    right: float


@dataclass(frozen=True)
class Task:
    """Labeled rows: names of labels, vectors [rows, h], and the rows with the labels that they came with."""

    labels: tuple[str, ...]
    vectors: NDArray[np.float32]
    rows: Split

    def answers(self, gold: Indices) -> Floats:
        """[rows, labels], out-of-fold probabilities where the rows have these labels."""
        examples = Split(self.rows.texts, gold)
        return out_of_fold(self.labels, self.vectors, examples, folds_of(examples))

    def look(self, changed: Indices, gold: Indices) -> Found:
        """Looks for rows that were changed, among these labels."""
        probabilities = self.answers(gold)
        suspects = find_suspects(probabilities, gold, folds_of(Split(self.rows.texts, gold)))
        found = np.isin([one.row for one in suspects], changed)
        right = float((probabilities.argmax(axis=1) == self.rows.gold).mean())
        n = len(changed)
        return Found(found[:n].sum() / n, len(suspects), found.sum() / n, right)

    def at_random(self, seed: int) -> tuple[Indices, Indices]:
        """Rows that are changed, and labels of which theirs are any other."""
        draw = np.random.default_rng(seed)
        changed = draw.permutation(len(self.rows))[: self.wrong]
        gold = self.rows.gold.copy()
        gold[changed] = (gold[changed] + draw.integers(1, len(self.labels), len(changed))) % len(self.labels)
        return changed, gold

    def as_confused(self, seed: int, clean: Floats) -> tuple[Indices, Indices]:
        """The same rows, and labels of which theirs are drawn by how probable `clean` answers make each other one."""
        changed, _ = self.at_random(seed)
        draw, gold = np.random.default_rng(seed), self.rows.gold.copy()
        for row in changed.tolist():
            others = np.where(np.arange(len(self.labels)) == gold[row], 0, clean[row])
            gold[row] = draw.choice(len(self.labels), p=others / others.sum())
        return changed, gold

    @property
    def wrong(self) -> int:
        """How many rows are changed."""
        return round(len(self.rows) * SHARE)


def main() -> None:
    """Changes labels, looks for them, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    base = load_base()
    lines = []
    for name, rows in SETS:
        lines.append([name, *measured(task_of(base, arguments.data / name, rows), arguments.seeds)])
        print(lines[-1], flush=True)
    counts = ["data", "rows", "changed (n)", "right", "suspects", "of the changed ones among them"]
    header = [*counts, "precision at n", "precision at n, confused labels"]
    write_section(PAGE, "label-errors", markdown_table(header, lines))


def task_of(base: Base, folder: Path, rows: int) -> Task:
    """So many training rows of a set with their vectors."""
    data = load_dataset(str(folder), DataOptions(train_rows=rows))
    train = data.splits["train"]
    return Task(data.labels, frozen_vectors(base, train.texts, MAX_LENGTH), train)


def measured(task: Task, seeds: int) -> list[str]:
    """The columns of one set."""
    found = [task.look(*task.at_random(seed)) for seed in range(seeds)]
    mean = Found(*np.mean(found, axis=0))
    confused = "–"
    if len(task.labels) > 2:  # of two labels the other one is the only one
        clean = task.answers(task.rows.gold)
        confused = spread([task.look(*task.as_confused(seed, clean)).precision for seed in range(seeds)])
    counts = [f"{len(task.rows):,}", f"{task.wrong:,}", f"{mean.right:.3f}", f"{mean.suspects:,.0f}"]
    return [*counts, f"{mean.recall:.3f}", spread([one.precision for one in found]), confused]


def spread(numbers: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{np.mean(numbers):.3f} ± {np.std(numbers, ddof=1):.3f}"


if __name__ == "__main__":
    main()
