"""Does watching stay silent without a change, and hear one? Tasks of few rows and a stream of the same set.

    python benchmarks/training/watching.py --data FOLDER --work FOLDER [--sets trec6 …] [--rows 60 …] [--draws 5]

Each task is a head on the base's own vectors, fitted to some rows of a set in an order of its own. 4,000 others are its
answers, counted and judged by the server's own classes: all of them without a change, and 1,500 of them before one
label has 20 points more. Of 1,000 rows a tenth is held out and gives the reference; else it is learned. `--work` keeps
the vectors of each set and no text.
"""

import csv
import gzip
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from onebert_bench.report import markdown_table
from onebert_bench.script import options, say
from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Prediction
from onebert_encoder.base.base import load_base
from onebert_encoder.text.tokens import Text
from onebert_server.answering.reading import seen
from onebert_server.extensions.watching.alarms import level_of
from onebert_server.extensions.watching.learning import learned
from onebert_server.extensions.watching.watched import Watched
from onebert_server.observed import Seen
from onebert_server.versions.facts import Facts
from onebert_store.file.manifest import Manifest, parse_manifest
from onebert_store.file.reference import heard_move
from onebert_training.fit.features import Features, tokenize
from onebert_training.fit.reference import reference_of

# Answers of a task, those before a change, and those after it.
STREAM, BEFORE, AFTER = 4000, 1500, 1000
MOVED = 0.2
# From so many rows on, a tenth is held out.
HELD_OUT = 1000
LENGTH = 128
VECTORS, LABELS, TEXTS = "vectors", "labels", "texts"

Rows = dict[str, NDArray[np.generic]]


class Task:
    """A fitted head, and what its version answers to the stream, as a server counts it."""

    def __init__(self, rows: Rows, count: int, draw: int) -> None:
        order = np.random.default_rng(draw).permutation(len(rows[LABELS]))
        vectors, labels, texts = (rows[name][order] for name in (VECTORS, LABELS, TEXTS))
        held_out = count // 10 if count >= HELD_OUT else 0
        head = LogisticRegression(max_iter=1000).fit(vectors[: count - held_out], labels[: count - held_out])
        logits = head.decision_function(vectors).astype(np.float32)
        logits = logits if logits.ndim == 2 else np.stack([-logits / 2, logits / 2], axis=1)
        self.manifest = _manifest(head.classes_.tolist())
        self.reference = reference_of(self.manifest, list(logits[count - held_out : count]), "validation", [])
        self.labels = labels[count : count + STREAM]
        facts = Facts("task", 1, "", "", "single_label", self.manifest.labels, LENGTH, "mean")
        self.answers = [
            seen(facts, cast(Prediction, answer(row, self.manifest)))._replace(text=int(text))
            for row, text in zip(logits[count : count + STREAM], texts[count : count + STREAM], strict=True)
        ]

    @property
    def accuracy(self) -> float:
        return float(
            np.mean([answer.labels == (label,) for answer, label in zip(self.answers, self.labels, strict=True)])
        )


class Stream:
    """Answers of one version in their order, judged as they come."""

    def __init__(self, task: Task) -> None:
        self.watched, self.alarms, self.least = Watched(task.manifest.labels, task.reference), 0, 1.0

    def take(self, answers: Iterable[Seen]) -> int | None:
        """Counts answers; returns how many it took until an alarm was on."""
        heard = None
        for number, latest in enumerate(answers, 1):
            for part in self.watched.count([latest]):
                if self.watched.learns:
                    self.watched.reference = learned(self.watched.reference, part)
                    continue
                self.alarms += self.watched.judge(part, level_of(1.0)) is True
                self.least = min(self.least, self.watched.judged.p if self.watched.judged else 1.0)
                if self.watched.alarm_since is not None and heard is None:
                    heard = number
        return heard


def main() -> None:
    """Computes the vectors that are not there yet, and prints a line for the draws of a set and a number of rows."""
    asked = options(
        __doc__,
        data=Path,
        work=Path,
        sets=["trec6", "sst2", "tweet_emotion", "snips_intent"],
        rows=[60, 250, 1000],
        draws=5,
    )
    asked.work.mkdir(parents=True, exist_ok=True)
    table = []
    for name in asked.sets:
        rows = _rows(asked.data / name, asked.work / f"{name}.npz", max(asked.rows) + STREAM)
        for count in asked.rows:
            draws = [_judged(Task(rows, count, draw)) for draw in range(asked.draws)]
            table.append([name, str(count), *_summary(draws)])
    columns = ["data", "rows", "accuracy", "hears, points", "smallest p", "alarms", "20 points move answers by"]
    print(markdown_table([*columns, "over hears: heard, after", "others: heard"], table))


class Judged(NamedTuple):
    """A task without a change, and with one: moves in points, and the answers after which the change was heard."""

    accuracy: float
    hears: float
    least: float
    alarms: int
    moved: float
    heard: int | None


def _judged(task: Task) -> Judged:
    same, changed = Stream(task), Stream(task)
    same.take(task.answers)
    changed.take(task.answers[:BEFORE])
    if changed.watched.alarm_since:
        raise ValueError("an alarm is on before the change")
    moved_answers = _moved(task.answers[BEFORE:], task.labels[BEFORE:])
    heard = changed.take(moved_answers)
    counts = [Counter(answer.labels for answer in answers) for answers in (task.answers[:BEFORE], moved_answers)]
    moved_by = max(abs(counts[1][label] / AFTER - counts[0][label] / BEFORE) for label in counts[0])
    reference = same.watched.reference
    hears = reference and heard_move(reference)
    return Judged(task.accuracy, 100 * (hears or 1), same.least, same.alarms, 100 * moved_by, heard or None)


def _summary(draws: Sequence[Judged]) -> list[str]:
    over = [draw for draw in draws if draw.moved > draw.hears]
    others = [draw for draw in draws if draw.moved <= draw.hears]
    heard = [draw.heard for draw in over if draw.heard]
    return [
        f"{min(draw.accuracy for draw in draws):.3f} to {max(draw.accuracy for draw in draws):.3f}",
        f"{min(draw.hears for draw in draws):.0f} to {max(draw.hears for draw in draws):.0f}",
        f"{min(draw.least for draw in draws):.1g}",
        str(sum(draw.alarms for draw in draws)),
        f"{min(draw.moved for draw in draws):.0f} to {max(draw.moved for draw in draws):.0f}",
        f"{len(heard)} of {len(over)}" + (f", {min(heard)} to {max(heard)}" if heard else ""),
        f"{sum(draw.heard is not None for draw in others)} of {len(others)}",
    ]


def _moved(answers: Sequence[Seen], labels: NDArray[np.generic]) -> list[Seen]:
    """A thousand of the answers in which one right label, the most common with enough rows, has 20 points more."""
    random = np.random.default_rng(0)
    for label in sorted(set(labels.tolist()), key=lambda name: -int((labels == name).sum())):
        of_label, others = (random.permutation(np.flatnonzero(way)) for way in (labels == label, labels != label))
        wanted = round(AFTER * (len(of_label) / len(labels) + MOVED))
        if wanted <= min(len(of_label), AFTER) and AFTER - wanted <= len(others):
            places = random.permutation([*of_label[:wanted], *others[: AFTER - wanted]])
            return [answers[place] for place in places]
    raise ValueError("no label has rows enough")


def _manifest(labels: list[str]) -> Manifest:
    base = {"name": "bert", "model_type": "bert", "digest": f"sha256:{0:064}"}
    task = {"task_type": "single_label", "labels": labels, "pooling": "mean", "max_length": LENGTH, "method": "head"}
    return parse_manifest({"format": 1, "base": base} | task)


def _rows(folder: Path, file: Path, count: int) -> Rows:
    """Vectors, labels and hashes of the texts of a set's rows, in an order of their own."""
    if file.exists():
        return dict(np.load(file))
    rows = []
    for part in sorted(folder.glob("*.csv.gz")):
        with gzip.open(part, "rt", encoding="utf-8", newline="") as lines:
            rows += [(row["sentence1"], row["label"]) for row in csv.DictReader(lines)]
    chosen = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))[:count]]
    texts: list[Text] = [text for text, _ in chosen]
    base = load_base()
    tokens = tokenize(base, _manifest(sorted({label for _, label in chosen})), texts)
    vectors = Features(base, tokens, base.config.num_layers, "mean").take(range(len(tokens)))
    arrays = {
        VECTORS: np.concatenate([vector.numpy() for vector in vectors]),
        LABELS: np.array([label for _, label in chosen]),
        TEXTS: np.array([crc32(str(text).encode()) for text in texts]),
    }
    np.savez(file, **arrays)
    say(folder.name)
    return arrays


if __name__ == "__main__":
    main()
