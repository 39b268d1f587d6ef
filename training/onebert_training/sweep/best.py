"""Writes the evaluation pages of the deltas that a sweep recommends for publishing."""

from collections.abc import Iterable
from pathlib import Path

from onebert_encoder.base.base import Base
from onebert_store.command import console
from onebert_store.disk import write_whole
from onebert_store.file.format import load
from onebert_store.tables.table import Table
from onebert_training.data.dataset import Dataset, Labeled
from onebert_training.insight.evaluated import evaluate_delta
from onebert_training.report.document import made
from onebert_training.report.evaluation import render_evaluation
from onebert_training.sweep.jobs import RunsFolder
from onebert_training.sweep.work import JobSet


def write_pages(base: Base, folder: RunsFolder, job_sets: Iterable[JobSet], names: Iterable[str]) -> dict[str, Path]:
    """Writes missing pages of the named runs' deltas; returns name -> page for all runs with held-out rows."""
    dataset_of = {job.name: job_set.dataset for job_set in job_sets for job in job_set.jobs}
    # A small data set has no held-out split: the delta was trained on every row.
    pages = {name: folder.page_file(name) for name in names if {"test", "validation"} & dataset_of[name].splits.keys()}
    for name, page in pages.items():
        if page.is_file():
            continue
        file, labeled = folder.delta_file(name), _measured(dataset_of[name])
        with console.busy(f"measuring {name}"):
            found, _ = evaluate_delta(base, load(file), labeled)
        page.parent.mkdir(exist_ok=True)
        record = {**found, "file": str(file), **made()}
        write_whole(page, render_evaluation(record, page.parent).encode())
    return pages


def _measured(dataset: Dataset) -> Labeled:
    """The test split, or else validation, without other columns."""
    name = "test" if "test" in dataset.splits else "validation"
    return Labeled(name, dataset.splits[name], dataset.metric, dataset.name, Table({}))
