"""Trains with `onebert train` beside what people would do instead, on the same rows, and measures the same texts.

    python benchmarks/training/beside.py --data FOLDER --work FOLDER [--sets NAME ...] [--sides NAME ...]
    python benchmarks/training/beside.py --data FOLDER --work FOLDER --per-class 8 16 --seeds 0 1 2 3 4

FOLDER holds one folder per data set, each with train, validation and test files. Of each set the work folder gets up to
3,000 rows to train on, of the two with long texts up to 1,000, and up to 1,000 to measure, and every side reads these
files. A finished cell is one line of `cells.jsonl` there, and a second call trains only what is missing; `--table`
prints what there is. A side `onebert:--option=value,--option=value` trains with these options. The sides `model2vec`
and `fasttext`, without an encoder, run if they are named. Sets of `UNTOUCHED` are for the end: nothing is chosen by
them.

With `--per-class` every side gets so many rows of each label, drawn anew for each seed, and nothing to validate on. The
side `setfit` needs `pip install setfit`, which is no part of what is tested.
"""

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from onebert_bench.beside import FEW_SIDES, FLOORS, SIDES, Judge, Scores
from onebert_bench.report import markdown_table
from onebert_bench.script import options
from onebert_store.command.process import ONEBERT
from onebert_training.data.dataset import Dataset, load_dataset, load_split
from onebert_training.data.examples import Split
from onebert_training.data.options import DataOptions, ReadOptions
from onebert_training.data.splitting import SPLIT_SEED, subset

LOOKED_AT = ("trec6", "sst2", "banking77", "tweet_emotion", "cola", "mrpc", "stsb", "snli_small")
UNTOUCHED = ("rte", "wnli", "sms_spam", "snips_intent", "imdb", "suzuki_yield")
TRAIN_ROWS, TEST_ROWS, VALIDATION_SHARE = 3000, 1000, 0.1
# Texts of some 150 and 200 tokens: 3,000 rows of these two sets have more tokens than those of all others together.
LONG = {"suzuki_yield": 1000, "imdb": 1000}
ONEBERT_SIDE = "onebert"


@dataclass(frozen=True)
class Cell:
    """One training: of a set, by a side, from a seed; on so many rows of each label, or on all if that is None."""

    set: str
    side: str
    seed: int
    per_class: int | None = None

    @property
    def rows(self) -> str:
        """The name of the folder of its rows, and of the line of a table that it stands in."""
        return self.set if self.per_class is None else f"{self.set}-{self.per_class}"


def main() -> None:
    """Trains what is missing, and prints the table."""
    arguments = options(
        __doc__, data=Path, work=Path, sets=LOOKED_AT, sides=[""], per_class=[0], seeds=[0, 1, 2], table=False
    )
    per_class = [count or None for count in arguments.per_class]
    usual = [ONEBERT_SIDE, *(SIDES if per_class == [None] else FEW_SIDES)]
    sides = usual if arguments.sides == [""] else arguments.sides
    # Seed by seed, so that a table is whole, if thin, as early as it can be.
    cells = [
        Cell(name, side, seed, count)
        for seed in arguments.seeds
        for count in per_class
        for name in arguments.sets
        for side in sides
    ]
    done = finished(arguments.work)
    for cell in cells if not arguments.table else ():
        if cell not in done:
            folder = rows_of(cell, arguments.data, arguments.work)
            began = time.monotonic()
            result = run(cell, folder, arguments.work)
            done[cell] = {**result, "seconds": round(time.monotonic() - began, 1)}
            keep(arguments.work, cell, done[cell])
            print(json.dumps({**vars(cell), **done[cell]}), flush=True)
    print(table(cells, sides, done))


def rows_of(cell: Cell, data: Path, work: Path) -> Path:
    """The folder with the rows of a cell that all sides read; made once.

    Where a set has no labeled test split its validation split is measured, and a tenth of the training rows validates.
    """
    folder = work / "rows" / (cell.rows if cell.per_class is None else f"{cell.rows}-{cell.seed}")
    if folder.exists():
        return folder
    tested = any((data / cell.set).glob("test.*"))
    share = None if tested else VALIDATION_SHARE
    rows = LONG.get(cell.set, TRAIN_ROWS) if cell.per_class is None else None
    dataset = load_dataset(str(data / cell.set), DataOptions(train_rows=rows, validation_share=share))
    splits = {**dataset.splits, "test": subset(dataset.splits["test"], dataset.task_type, TEST_ROWS, SPLIT_SEED)}
    if cell.per_class is not None:
        splits = {"train": few(splits["train"], cell.per_class, cell.seed), "test": splits["test"]}
    making = folder.with_suffix(".making")
    making.mkdir(parents=True, exist_ok=True)
    for split, examples in splits.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in written(examples, dataset))
        (making / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    facts = {"task_type": dataset.task_type, "labels": dataset.labels, "metric": dataset.metric}
    (making / "labels.json").write_text(json.dumps(facts), encoding="utf-8")
    making.rename(folder)
    return folder


def few(train: Split, per_class: int, seed: int) -> Split:
    """So many rows of each label, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(train))
    chosen = [order[train.gold[order] == label][:per_class] for label in np.unique(train.gold)]
    return train.take(np.sort(np.concatenate(chosen)))


def written(rows: Split, dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Rows as a user has them in a file."""
    for text, gold in zip(rows.texts, rows.plain_gold(), strict=True):
        halves = {"text": text} if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
        yield {**halves, "label": gold if dataset.task_type == "regression" else dataset.labels[gold]}


def run(cell: Cell, folder: Path, work: Path) -> dict[str, Any]:
    """What one cell scores on the test rows by every metric, and the name of the set's own."""
    dataset = load_dataset(str(folder)) if cell.per_class is None else unvalidated(folder)
    side, _, options = cell.side.partition(":")
    if side == ONEBERT_SIDE:
        scores = onebert(cell, folder, work, [option for option in options.split(",") if option])
    else:
        scores = ({**SIDES, **FLOORS} if cell.per_class is None else FEW_SIDES)[side](dataset, cell.seed)
    return {"metric": Judge(dataset).metric, "scores": scores}


def unvalidated(folder: Path) -> Dataset:
    """The rows of a folder as they are, with nothing held out."""
    facts = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    kind, labels = facts["task_type"], tuple(facts["labels"])
    splits = {name: load_split(str(folder), ReadOptions(), kind, labels, name)[1] for name in ("train", "test")}
    return Dataset(folder.name, kind, labels, facts["metric"], splits, digest="")


def onebert(cell: Cell, folder: Path, work: Path, options: Sequence[str]) -> Scores:
    """What `onebert train` prints of the test rows, with its defaults but for the options."""
    stem = f"{cell.rows}-{cell.side}-{cell.seed}".replace(":", "-").replace("/", "-")
    out = work / "deltas" / f"{stem}.safetensors"
    out.parent.mkdir(parents=True, exist_ok=True)
    asked = ["--task", cell.set, "--data", str(folder), "--out", str(out), "--seed", str(cell.seed), *options]
    done = subprocess.run([*ONEBERT, "train", *asked, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    scores: Scores = json.loads(done.stdout)["test"]
    return scores


def finished(work: Path) -> dict[Cell, dict[str, Any]]:
    """The cells that were trained already."""
    path = work / "cells.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return {
        Cell(record.pop("set"), record.pop("side"), record.pop("seed"), record.pop("per_class", None)): record
        for record in records
    }


def keep(work: Path, cell: Cell, result: Mapping[str, Any]) -> None:
    """Writes one finished cell down."""
    with (work / "cells.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**vars(cell), **result}) + "\n")


def table(cells: Sequence[Cell], sides: Sequence[str], done: Mapping[Cell, Mapping[str, Any]]) -> str:
    """A line for each set: mean and spread over seeds, in points, and how far the first side is from the best other.

    For each number of few rows one more line has the mean over the sets that all sides have.
    """
    scores: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    metric: dict[str, str] = {}
    for cell in cells:
        metric.setdefault(cell.rows, "")
        if cell in done:
            record = done[cell]
            metric[cell.rows] = record["metric"]
            scores[cell.rows, cell.side].append(100 * record["scores"][record["metric"]])
    most = max(map(len, scores.values()), default=0)
    shown = {name: [spread(scores[name, side], most) for side in sides] for name in metric}
    lines = [[name, metric[name], *shown[name], lead([scores[name, side] for side in sides])] for name in metric]
    for count in sorted({cell.per_class for cell in cells if cell.per_class is not None}):
        names = dict.fromkeys(cell.rows for cell in cells if cell.per_class == count)
        whole = [name for name in names if all(scores[name, side] for side in sides)]
        means = [[mean(mean(scores[name, side]) for name in whole)] if whole else [] for side in sides]
        lines.append(
            [f"mean of {len(whole)}, {count} rows", "", *(spread(side_scores, 1) for side_scores in means), lead(means)]
        )
    return markdown_table(["data", "metric", *sides, f"{sides[0]} − best of the others"], lines)


def spread(values: Sequence[float], seeds: int) -> str:
    """Mean and standard deviation, and over how many seeds where others have more."""
    if not values:
        return "–"
    fewer = "" if len(values) == seeds else f" ({len(values)})"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") + fewer


def lead(by_side: Sequence[Sequence[float]]) -> str:
    """How far the first side's mean is from the highest of the others' means, of the means as they are shown."""
    first, *others = ([round(mean(values), 1)] if values else [] for values in by_side)
    best = max((number for other in others for number in other), default=None)
    return f"{first[0] - best:+.1f}" if first and best is not None else "–"


if __name__ == "__main__":
    main()
