"""The pages of the deltas that a sweep says to publish: what the rows they are measured on say of each."""

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
    """Writes the page of each delta that has none yet, and returns all: name of the run -> page, if rows are held out.

    Args:
        base: the frozen encoder.
        folder: has the delta files.
        job_sets: with the runs' data.
        names: of the runs.

    Raises:
        StorageFull: the disk refused a write.
    """
    dataset_of = {job.name: job_set.dataset for job_set in job_sets for job in job_set.jobs}
    # Of few rows a delta has seen all.
    pages = {name: folder.page_file(name) for name in names if {"test", "validation"} & dataset_of[name].splits.keys()}
    for name, page in pages.items():
        if page.is_file():
            continue
        file, labeled = folder.delta_file(name), _measured(dataset_of[name])
        with console.busy(f"measuring {name}"):
            found = evaluate_delta(base, load(file), labeled)
        page.parent.mkdir(exist_ok=True)
        record = {**found.record, "file": str(file), **made()}
        write_whole(page, render_evaluation(record, page.parent).encode())
    return pages


def _measured(dataset: Dataset) -> Labeled:
    """The test split, or validation where there is none, without its other columns."""
    name = "test" if "test" in dataset.splits else "validation"
    return Labeled(name, dataset.splits[name], dataset.metric, dataset.name, Table({}))
