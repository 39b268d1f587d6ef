"""Does watching stay silent without a change, and hear one? Tasks of few rows and a stream of the same set.

    python benchmarks/training/watching.py --data FOLDER --work FOLDER [--sets trec6 …] [--rows 60 …] [--methods head …]

Each task is trained on some rows of a set. 4,000 others of the same set are then its answers, counted and judged by the
server's own classes at 10,000 requests a day: all of them without a change, and 1,500 of them before one label has
20 points more. `--work` keeps the logits of each training and no text, so an interrupted run goes on; `--shown` trains
nothing.
"""

import csv
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from onebert_bench.report import markdown_table
from onebert_bench.script import options, say
from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Prediction
from onebert_encoder.base.base import Base, load_base
from onebert_server.answering.reading.seen import seen
from onebert_server.extensions.watching.alarms import LEAST_ANSWERS, Budget
from onebert_server.extensions.watching.watched import Watched
from onebert_server.extensions.watching.windows import PART, Live
from onebert_server.observed import Seen
from onebert_server.versions.facts import Facts
from onebert_store.file.manifest import Manifest, parse_manifest
from onebert_store.file.reference import heard_move
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Source
from onebert_training.data.options import DataOptions
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.fit.loop import train
from onebert_training.fit.settings import DEFAULT_METHOD, Settings
from onebert_training.prepared import prepare

# Answers of a task, and those before a change.
STREAM, BEFORE = 4000, 1500
METHODS = [DEFAULT_METHOD, "head", "bitfit", "layernorm", "lora"]


# One alarm a month at 10,000 requests a day over all tasks.
SECONDS = 86_400 / 10_000
MOVED = 0.2


@dataclass(frozen=True)
class Task:
    """A trained version, and what it answers to its training rows and then to the stream, as a server counts it."""

    manifest: Manifest
    answers: list[Seen]
    labels: NDArray[np.str_]
    rows: int

    @classmethod
    def from_file(cls, file: Path) -> "Task":
        kept = np.load(file)
        manifest = parse_manifest(json.loads(str(kept["manifest"])))
        facts = Facts("task", 1, "", "", manifest.task_type, manifest.labels, manifest.max_length, manifest.pooling)
        answers = [
            seen(facts, cast(Prediction, answer(logits, manifest)))._replace(text=int(text))
            for logits, text in zip(kept["logits"], kept["texts"], strict=True)
        ]
        return cls(manifest, answers, kept["labels"], len(answers) - STREAM)

    def accuracy(self) -> float:
        right = [one.labels == (label,) for one, label in zip(self.answers, self.labels, strict=True)]
        return float(np.mean(right[self.rows :]))


class Stream:
    """Answers of one version in their order, judged as they come."""

    def __init__(self, task: Task) -> None:
        self.watched, self.alarms, self.least, self._now = Watched.from_manifest(task.manifest), 0, 1.0, 0.0
        self._budget = Budget(1.0, lambda: self._now)
        # A server that has run for long gives each window the same level.
        for _ in range(1000):
            self._now += PART * SECONDS
            self._budget.spend()

    def take(self, answers: Iterable[Seen]) -> int | None:
        """Counts answers; returns how many it took until an alarm was on."""
        heard = None
        for number, one in enumerate(answers, 1):
            self._now += SECONDS
            for full in self.watched.count([one]):
                if not isinstance(full, Live):
                    self.watched.learn(full)
                elif full.answers >= LEAST_ANSWERS:
                    change = self.watched.judge(full, self._budget.spend())
                    self.least = min(self.least, self.watched.judged.p if self.watched.judged else 1.0)
                    self.alarms += change is True
                    if change is False:
                        self.watched.alarm_since = None
                    if self.watched.alarm_since is not None and heard is None:
                        heard = number
        return heard


def main() -> None:
    """Trains what is not trained yet, and prints a line a task."""
    asked = options(
        __doc__,
        data=Path,
        work=Path,
        sets=["trec6", "sst2", "tweet_emotion", "snips_intent"],
        rows=[60, 250, 1000],
        methods=METHODS,
        shown=False,
    )
    asked.work.mkdir(parents=True, exist_ok=True)
    base = None if asked.shown else load_base()
    table = []
    for rows in asked.rows:
        for name in asked.sets:
            labeled = _read(asked.data / name)[: rows + STREAM]
            for method in asked.methods:
                file = asked.work / f"{name}-{rows}-{method.replace(':', '-')}.npz"
                if base is not None and not file.exists():
                    _train(base, labeled, rows, method, file)
                    say(file.stem)
                if file.exists():
                    table.append([name, str(rows), method, *_judged(Task.from_file(file))])
    columns = ["data", "rows", "method", "accuracy", "reference", "hears", "smallest p", "alarms"]
    print(markdown_table([*columns, "training rows first", "20 points move answers by", "heard after"], table))


def _judged(task: Task) -> list[str]:
    """The cells of a task: without a change, after a first try with its training rows, and with a change."""
    stream = task.answers[task.rows :]
    same = Stream(task)
    same.take(stream)
    reference = same.watched.reference
    tried = Stream(task)
    tried.take(task.answers)
    changed = Stream(task)
    changed.take(stream[:BEFORE])
    before = changed.watched.alarm_since
    moved_stream = _moved(stream[BEFORE:], task.labels[task.rows + BEFORE :])
    heard = changed.take(moved_stream)
    counts = [Counter(one.labels for one in answers) for answers in (stream[:BEFORE], moved_stream)]
    moved_by = max(abs(counts[1][label] / 1000 - counts[0][label] / BEFORE) for label in counts[0])
    moved = reference and heard_move(reference)
    return [
        f"{task.accuracy():.3f}",
        f"{reference.rows} {reference.split}" if reference else "not learned",
        f"{100 * moved:.0f} points" if moved else "-",
        f"{same.least:.1g}",
        str(same.alarms),
        str(tried.alarms),
        f"{100 * moved_by:.0f} points",
        "on before" if before else str(heard or "no"),
    ]


def _moved(answers: Sequence[Seen], labels: NDArray[np.str_]) -> list[Seen]:
    """A thousand of the answers in which one right label, the most common with enough rows, has 20 points more."""
    random = np.random.default_rng(0)
    for label in sorted(set(labels.tolist()), key=lambda name: -int((labels == name).sum())):
        own, others = (random.permutation(np.flatnonzero(way)) for way in (labels == label, labels != label))
        wanted = round(1000 * (len(own) / len(labels) + MOVED))
        if wanted <= min(len(own), 1000) and 1000 - wanted <= len(others):
            places = random.permutation([*own[:wanted], *others[: 1000 - wanted]])
            return [answers[place] for place in places]
    raise ValueError("no label has rows enough")


def _read(folder: Path) -> list[tuple[str, str]]:
    """All rows of a set, in an order that is the same for every training."""
    rows = []
    for file in sorted(folder.glob("*.csv.gz")):
        with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
            rows += [(row["sentence1"], row["label"]) for row in csv.DictReader(lines)]
    return [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]


def _train(base: Base, labeled: Sequence[tuple[str, str]], rows: int, method: str, file: Path) -> None:
    """Trains on the first rows, and keeps what the version answers to all."""
    texts, labels = zip(*labeled, strict=True)
    table = Table({"text": list(texts[:rows]), "label": list(labels[:rows])}, "rows")
    source, reading = Source("rows", {"train": table}, single_file=True), DataOptions(task_type="single_label")
    # Without folds and a contest, which would keep the exact head, one of the methods, in place of some.
    delta = train(prepare("watched", source, reading, Settings(method=method), base).run).delta
    if delta is None:
        raise ValueError(f"{method} makes no delta")
    logits = np.stack(predict_delta(base, delta, tokenize(base, delta.manifest, texts)))
    kept = {"manifest": delta.manifest.model_dump_json(), "logits": logits, "labels": np.array(labels)}
    partial = file.with_suffix(".partial")
    with partial.open("wb") as opened:
        np.savez(opened, **kept, texts=np.array([crc32(text.encode()) for text in texts]))
    partial.replace(file)


if __name__ == "__main__":
    main()
