"""`onebert evaluate`: loads, computes, shows."""

from collections.abc import Sequence
from pathlib import Path

from onebert_store.command import console
from onebert_store.disk import check_writable, write_whole
from onebert_store.errors import InvalidSettings
from onebert_store.file.delta import check
from onebert_store.file.format import load
from onebert_store.tables.writers import WRITERS
from onebert_training.commands.showing import show_evaluated
from onebert_training.data.dataset import load_split
from onebert_training.data.options import ReadOptions
from onebert_training.data.texts import load_texts
from onebert_training.insight.evaluated import evaluate_delta
from onebert_training.insight.predictions import require_new_names, write_predictions
from onebert_training.options import Machine
from onebert_training.report.document import made
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
    check(delta, loaded.spec)
    labeled = load_split(data, reading, manifest.task_type, manifest.labels, split)
    others = () if unknown is None else load_texts(unknown, reading.columns, reading.encoding, else_by_name=True)[1]
    if predictions is not None:
        require_new_names(labeled.table, file.stem)
    with console.busy(f"evaluating {len(labeled.split):,} rows"):
        found, answers = evaluate_delta(loaded, delta, labeled, slices, others)
    record = {**found, "file": str(file), **made()}
    if predictions is not None:
        write_predictions(predictions, file.stem, labeled.table, answers)
    if report is not None:
        write_whole(report, render_evaluation(record, report.parent).encode())
    if as_json:
        console.print_json(record)
        return
    show_evaluated(record)
    for path in (predictions, report):
        if path is not None:
            console.say(f"written: {path}")


def _check_files(read: Sequence[Path], report: Path | None, predictions: Path | None) -> None:
    """Rejects unwritable output files before the slow work."""
    if predictions is not None and predictions.suffix.lower() not in WRITERS:
        raise InvalidSettings(f"--predictions ends in one of {', '.join(WRITERS)}")
    for option, path in (("--report", report), ("--predictions", predictions)):
        if path is not None:
            check_writable(option, path, read)
