"""Writes tables of calibration and unknown texts to benchmarks/results/accuracy.md: promises beside unseen rows.

    python benchmarks/training/calibration.py --data FOLDER [--draws 10]

The task is an exact head on the frozen base, fitted on up to 1,500 training rows of each set. Up to 1,500 rows of its
other splits are put together and halved at random: one half is calibrated on, the other is new. That is done several
times; the first halves fill the columns of promises, the share of all is behind them.
"""

import argparse
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_bench.pages import markdown_table, write_section
from onebert_encoder.answering.scores import softmax
from onebert_encoder.base.base import Base, load_base
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import Manifest, parse_manifest
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.frozen import frozen_vectors
from onebert_training.heads.exact import ExactHead, fit_heads
from onebert_training.insight.calibration import Target, calibrate
from onebert_training.insight.intervals import Flags, Floats, Judged
from onebert_training.insight.temperature import losses
from onebert_training.insight.thresholds import as_rates, rates
from onebert_training.target_scale import TargetScale
from onebert_training.tasks.objectives import SingleLabel

Vectors = NDArray[np.float32]
Indices = NDArray[np.int64]

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "accuracy.md"
SETS = (
    *("banking77", "snips_intent", "trec6", "tweet_emotion", "sms_spam"),
    *("sst2", "imdb", "cola", "mrpc", "snli_small"),
)
TARGETS = (Target("fpr", 0.01), Target("precision", 0.95), Target("coverage", 0.9))
# Sets whose texts are unknown to a task of another: far from it, and nearer.
UNKNOWN = {"banking77": ("trec6", "snips_intent"), "snips_intent": ("banking77", "trec6")}
MOST = 1500
STRENGTH = 0.3
MAX_LENGTH = 64


@dataclass(frozen=True)
class Task:
    """A head, and rows that it was not fitted on.

    Attributes:
        manifest: with the labels.
        fitted: vectors and labels of the rows that the head is fitted on.
        vectors: [rows, h], of the others.
        labels: [rows], indices of their labels.
    """

    manifest: Manifest
    fitted: tuple[Vectors, Indices]
    vectors: Vectors
    labels: Indices

    @cached_property
    def head(self) -> ExactHead:
        """The exact head of the fitted rows."""
        [head] = fit_heads(SingleLabel(self.manifest.labels), *self.fitted, [STRENGTH])
        return head

    @cached_property
    def logits(self) -> Floats:
        """[rows, labels]."""
        return self.answer(self.vectors)

    @property
    def gold(self) -> Flags:
        """[rows, labels], which label each row has."""
        return self.labels[:, None] == np.arange(len(self.manifest.labels))

    def answer(self, vectors: Vectors) -> Floats:
        """[texts, labels], logits of other texts by their vectors."""
        return self.head.logits(vectors, TargetScale()).astype(np.float64)

    def of_labels(self, kept: Indices) -> "Task":
        """The same with some of the labels only, and the rows that have them."""
        place = np.full(len(self.manifest.labels), -1)
        place[kept] = np.arange(len(kept))
        fitted, rows = place[self.fitted[1]] >= 0, place[self.labels] >= 0
        manifest = self.manifest.model_copy(update={"labels": [self.manifest.labels[i] for i in kept]})
        own = self.fitted[0][fitted], place[self.fitted[1][fitted]]
        return Task(manifest, own, self.vectors[rows], place[self.labels[rows]])


class Kept(NamedTuple):
    """What was promised, the rate on new rows, and whether it lay between."""

    low: float
    high: float
    new: float

    @property
    def inside(self) -> bool:
        """Whether the promise was kept."""
        return self.low <= self.new <= self.high


def main() -> None:
    """Calibrates and measures every set, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--draws", type=int, default=10, help="random halves of each set")
    arguments = parser.parse_args()
    base = load_base()
    tasks = {name: task_of(base, arguments.data / name) for name in SETS}
    lines = []
    for name, task in tasks.items():
        line = [name, f"{len(task.gold) // 2:,}"]
        for target in TARGETS:
            found = [promised(task, target, draw) for draw in range(arguments.draws)]
            line.append(said(found))
        lines.append([*line, temperature(task, arguments.draws)])
        print(lines[-1], flush=True)
    header = ["data", "rows", *map(str, TARGETS), "temperature: taken; likelihood of new rows"]
    write_section(PAGE, "calibration", markdown_table(header, lines))
    write_section(PAGE, "unknown", unknown_table(tasks))


def task_of(base: Base, folder: Path) -> Task:
    """The task of one set, and rows to calibrate and to measure on."""
    data = load_dataset(str(folder), DataOptions(train_rows=MOST))
    manifest = parse_manifest(
        {
            "format": 1,
            "base": {"name": base.spec.name, "model_type": base.spec.model_type, "digest": base.spec.digest},
            "task_type": "single_label",
            "labels": list(data.labels),
            "pooling": "mean",
            "max_length": MAX_LENGTH,
            "method": "frozen",
        }
    )
    train = data.splits["train"]
    others = [split for name, split in data.splits.items() if name != "train"]
    texts = [text for split in others for text in split.texts]
    gold = np.concatenate([split.gold for split in others])
    chosen = np.random.default_rng(0).permutation(len(texts))[:MOST]
    fitted = frozen_vectors(base, train.texts, MAX_LENGTH), train.gold
    return Task(
        manifest, fitted, frozen_vectors(base, [texts[row] for row in chosen.tolist()], MAX_LENGTH), gold[chosen]
    )


def halves(rows: int, draw: int) -> tuple[Indices, Indices]:
    """Rows to calibrate on, and new ones."""
    order = np.random.default_rng(draw).permutation(rows)
    return order[: rows // 2], order[rows // 2 : 2 * (rows // 2)]


def promised(task: Task, target: Target, draw: int) -> Kept | None:
    """What calibration promised of new rows, and what they gave; None where it refused."""
    here, new = halves(len(task.gold), draw)
    try:
        found = calibrate(task.logits[here], task.gold[here], task.manifest, [target])
    except InvalidData:
        return None
    logits = task.logits[new] / found.decision.get("temperature", 1.0)
    if target.kind == "coverage":
        rule, between = found.facts["abstain"], found.facts["abstain"]["coverage"]
        temperature = found.decision.get("temperature", 1.0)
        energy = -temperature * np.logaddexp.reduce(logits, axis=1)
        given = energy <= rule["energy"] if "energy" in rule else softmax(logits).max(axis=1) >= rule["below"]
        return Kept(between["low"], between["high"], float(given.mean()))
    between = found.facts["thresholds"]["all"][target.kind]
    cuts = np.array([found.decision["thresholds"][label] for label in task.manifest.labels])
    rate = getattr(as_rates(rates(cuts, Judged(softmax(logits), task.gold[new]))), target.kind)[-1]
    return Kept(between["low"], between["high"], float(rate))


def said(found: list[Kept | None]) -> str:
    """The first promise with what became of it, and how many of all were kept."""
    made = [one for one in found if one is not None]
    if not made:
        return "refused"
    first = f"{made[0].low:.3f}–{made[0].high:.3f}: {made[0].new:.3f}" + ("" if made[0].inside else " **outside**")
    return f"{first} ({sum(one.inside for one in made)} of {len(made)})"


def temperature(task: Task, draws: int) -> str:
    """How often a temperature was taken, and the mean negative log likelihood of new rows without it and with it."""
    taken, before, after = 0, [], []
    for draw in range(draws):
        here, new = halves(len(task.gold), draw)
        found = calibrate(task.logits[here], task.gold[here], task.manifest, []).decision
        taken += bool(found)
        for losses_of, by in ((before, 1.0), (after, found.get("temperature", 1.0))):
            losses_of.append(losses(task.logits[new], task.gold[new], "softmax", by).mean())
    return f"{taken} of {draws}; {np.mean(before):.4f} → {np.mean(after):.4f}"


def unknown_table(tasks: dict[str, Task]) -> str:
    """How well texts of other sets, and of labels that a head never saw, are told from those that it knows."""
    lines = []
    for name, others in UNKNOWN.items():
        task = tasks[name]
        lines += [apart(task, name, other, tasks[other].vectors) for other in others]
        # Every third label is unknown to a head that is fitted on rows of the others.
        known = task.of_labels(np.flatnonzero(np.arange(len(task.manifest.labels)) % 3 != 0))
        away = task.vectors[task.labels % 3 == 0]
        lines.append(apart(known, f"{name}, two thirds of its labels", "of the other labels", away))
    header = ["task", "unknown texts", "AUROC by probability", "let through", "AUROC by energy", "let through"]
    return markdown_table(header, lines)


def apart(task: Task, name: str, other: str, away: Vectors) -> list[str]:
    """One line of the table."""
    found = calibrate(task.logits, task.gold, task.manifest, [], task.answer(away)).facts["unknown"]
    numbers = [
        number
        for by in ("probability", "energy")
        for number in (f"{found[by]['auroc']:.3f}", f"{100 * found[by]['let_through']:.1f} %")
    ]
    return [name, f"{len(away):,} {other}", *numbers]


if __name__ == "__main__":
    main()
