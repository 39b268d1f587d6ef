"""`onebert evaluate`: loads, computes, shows, and writes the rows with their answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onebert_store.command import console
from onebert_store.disk import check_writable, write_whole
from onebert_store.errors import InvalidSettings
from onebert_store.file.delta import require_fit
from onebert_store.file.format import load
from onebert_store.tables.columns import trained_columns
from onebert_store.tables.table import Table
from onebert_store.tables.writers import check_ending, write_table
from onebert_training.commands.showing import show_evaluation
from onebert_training.data.dataset import load_split, load_texts
from onebert_training.data.options import ReadOptions
from onebert_training.insight.answers import Answers
from onebert_training.insight.evaluated import evaluate_delta
from onebert_training.insight.intervals import plain
from onebert_training.options import Machine
from onebert_training.report.document import provenance
from onebert_training.report.evaluation import render_evaluation


def run_evaluate(
    file: Path,
    data: str,
    split: str | None,
    reading: ReadOptions,
    slices: Sequence[str],
    unknown: str | None,
    report: Path | None,
    predictions: Path | None,
    machine: Machine,
    as_json: bool,
) -> None:
    """Measures a delta file on one split, shows the result, and writes the requested files."""
    _check_files((file, Path(data), *([] if unknown is None else [Path(unknown)])), report, predictions)
    delta = load(file)
    manifest = delta.manifest
    # The user names the base: a delta file is untrusted and must not decide which model is loaded.
    loaded = machine.load()
    require_fit(delta, loaded.spec)
    read = reading.read(data)
    reading = reading.remembering(trained_columns(manifest), read)
    labeled = load_split(read, reading, manifest.task_type, manifest.labels, split)
    unknown_texts = (
        () if unknown is None else load_texts(unknown, reading.columns, reading.encoding, else_by_name=True)[1]
    )
    if predictions is not None:
        require_new_names(labeled.table, file.stem)
    with console.busy(f"evaluating {len(labeled.split):,} rows"):
        measurements, answers = evaluate_delta(loaded, delta, labeled, slices, unknown_texts)
    record = {**measurements, "file": str(file), **provenance()}
    if predictions is not None:
        write_predictions(predictions, file.stem, labeled.table, answers)
    if report is not None:
        write_whole(report, render_evaluation(record, report.parent).encode())
    if as_json:
        console.print_json(record)
        return
    show_evaluation(record)
    for path in (predictions, report):
        if path is not None:
            console.say(f"written: {path}")


def _check_files(read: Sequence[Path], report: Path | None, predictions: Path | None) -> None:
    if predictions is not None:
        check_ending("--predictions", predictions)
    for option, path in (("--report", report), ("--predictions", predictions)):
        if path is not None:
            check_writable(option, path, read)


def write_predictions(path: Path, name: str, table: Table, answers: Answers) -> None:
    """Writes columns NAME_gold … atomically by the ending; raises InvalidSettings, InvalidData, StorageFull."""
    added = {f"{name}_{column}": cells for column, cells in _columns(answers).items()}
    require_new_names(table, name)
    write_table(path, {**{column: table[column] for column in table}, **added})


def require_new_names(table: Table, name: str) -> None:
    """Raises InvalidSettings if the prefix would give a new column the name of an existing one."""
    for column in ("gold", "answer", "score", "loss", "abstained"):
        if f"{name}_{column}" in table:
            raise InvalidSettings(f"two columns would be called {name[:80]}_{column}")


def _columns(answers: Answers) -> Mapping[str, Sequence[Any]]:
    score = {} if answers.measure.name == "mae" else {"score": list(map(plain, answers.score))}
    rule = {} if answers.abstained is None else {"abstained": answers.abstained.tolist()}
    loss = list(map(plain, answers.loss))
    return {"gold": answers.gold, "answer": answers.answer, **score, "loss": loss, **rule}
