"""Shared by the tests of training: data that a tiny base can learn, short runs, commands in this process."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from bases import far_delta, manifest_for, tiny_base
from onebert_encoder.base.base import Base, load_base
from onebert_store.file.delta import Delta
from onebert_store.file.format import save
from onebert_store.file.manifest import parse_manifest
from onebert_training.data.dataset import Dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import Progress, Report
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings

THINGS = ("parcel", "order", "invoice", "password", "screen", "refund")
# A value for each setting that is not its default; a new setting needs one here.
CHANGED = Settings(
    method="bitfit",
    pooling="cls",
    positive="complaint",
    class_weight="balanced",
    max_length=40,
    cut="ends",
    epochs=3,
    max_steps=50,
    batch_size=8,
    learning_rate=0.004,
    head_learning_rate="same",
    averaging=0.2,
    start="fresh",
    seed=3,
    evals_per_epoch=2,
    patience=4,
    keep="best",
    metric="macro_f1",
    measure_train=True,
    no_fingerprint=True,
)
READING = DataOptions(
    text="words",
    text_pair="more words",
    label="kind",
    encoding="cp1251",
    sheet="rows",
    label_separator=";",
    drop_unlabeled=True,
    drop_empty=True,
    task_type="single_label",
    train_rows=40,
    validation_rows=9,
    validation_share=0.25,
    more="feedback.jsonl",
    new_label_rows=7,
)

SPLITS = {"train": 48, "validation": 20, "test": 12}


def tagged(count: int, offset: int = 0) -> Iterator[dict[str, Any]]:
    """Texts whose entities are things of two words, some of several word pieces."""
    for i in range(offset, offset + count):
        words = ["my", THINGS[i % 6], ("stamps", "box", "code")[i % 3], *("was", "very", "late")[: 1 + i % 3]]
        yield {"words": words, "tags": ["O", "B-THING", "I-THING", *["O"] * (len(words) - 3)]}


def asked(count: int, offset: int = 0) -> Iterator[dict[str, Any]]:
    """Questions whose answer is a thing somewhere in the context."""
    for i in range(offset, offset + count):
        thing, before = THINGS[i % 6], ("the late ", "my very good ", "")[i % 3]
        context = f"{before}{thing} was broken, thanks"
        answers = {"text": [thing], "answer_start": [len(before)]}
        yield {"question": "what was it?", "context": context, "answers": answers}


def write_tone(folder: Path) -> Path:
    """A file for each split, of praise and complaint, which differ in one word."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [("good", "praise"), ("bad", "complaint")]
    for split, count in SPLITS.items():
        drawn = [(i, *words[(i + len(split)) % 2]) for i in range(count)]
        rows = [f"the {THINGS[i % 6]} was very {word} and late {i},{label}" for i, word, label in drawn]
        (folder / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return folder


def remembering(folder: Path, **settings: Any) -> Path:
    """A delta file whose manifest has these settings, for `--like`: keys of recipes are no options."""
    spec = load_base(str(tiny_base())).spec
    manifest = manifest_for(spec, labels=2, training={"settings": settings})
    file = folder / "remembering.safetensors"
    save(file, Delta(parse_manifest(manifest), far_delta(spec, "bitfit", "mean", 2, seed=0)))
    return file


def write_splits(folder: Path, rows_of: Callable[..., Iterator[dict[str, Any]]]) -> Path:
    """A file for each split, of the rows that `tagged` or `asked` gives."""
    folder.mkdir(exist_ok=True)
    for split, count in SPLITS.items():
        rows = rows_of(count, offset=len(split))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class InterruptedRunError(Exception):
    """Raised in the middle of a run."""


@contextmanager
def interrupted(ends: Callable[[Run, Progress], bool]) -> Iterator[Report]:
    """Gives a report that raises where `ends` says so, and catches that."""

    def report(run: Run, progress: Progress) -> None:
        if ends(run, progress):
            raise InterruptedRunError

    with pytest.raises(InterruptedRunError):
        yield report


def short_run(base: Base, data: Dataset, settings: Settings, kind: type[Run] = Run, **changes: Any) -> Run:
    settings = replace(settings, **changes)
    return kind(TaskInputs(base, data, settings.max_length), settings, "tone")


def invoke(command: Callable[..., None], *arguments: Any) -> Result:
    """Runs a command in this process, on the tiny base and the CPU."""
    app = typer.Typer()
    app.command()(command)
    common = ["--base", str(tiny_base()), "--device", "cpu"]
    return CliRunner().invoke(app, [*map(str, arguments), *common], env={"COLUMNS": "200"})
