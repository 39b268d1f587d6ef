"""`onebert sweep`: expands the recipe, skips finished runs, trains the rest, shows results and best deltas."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from onebert_encoder.base.base import Base
from onebert_store.command import console
from onebert_store.disk import write_whole
from onebert_store.file.format import load
from onebert_store.tables.table import Table
from onebert_training.data.dataset import Dataset, Labeled
from onebert_training.fit.loop import ignore
from onebert_training.insight.evaluated import evaluate_delta
from onebert_training.options import Machine
from onebert_training.report.document import provenance
from onebert_training.report.evaluation import render_evaluation
from onebert_training.report.records import Record, load_records
from onebert_training.report.tables import Results, Trial, choose, collect, headings, result_rows
from onebert_training.sweep import work
from onebert_training.sweep.recipe import load_recipe
from onebert_training.sweep.work import JobSet, Outcome, RunsFolder


def run_sweep(
    recipe: Path,
    data: Path | None,
    out: Path,
    only: Collection[str],
    machine: Machine,
    together: int,
    as_json: bool,
) -> None:
    """Trains the unfinished runs of a recipe; checks all runs before the first one starts."""
    loaded_recipe = load_recipe(recipe)
    requests = loaded_recipe.runs(data, only)
    loaded = machine.load()
    with console.busy("loading data"):
        job_sets = work.make_job_sets(requests, loaded.spec, machine.dtype)
        for job_set in job_sets:
            work.check_runs(loaded, job_set)
    folder = RunsFolder(out)
    names = [job.name for job_set in job_sets for job in job_set.jobs]
    folder.plan(loaded_recipe.name, names)
    unfinished = [
        replace(job_set, jobs=tuple(job for job in job_set.jobs if folder.is_pending(job))) for job_set in job_sets
    ]
    pending = [job_set for job_set in unfinished if job_set.jobs]
    done = len(names) - sum(len(job_set.jobs) for job_set in pending)
    console.tell(f"{loaded_recipe.name}: {len(names)} runs, {done} of them finished before")
    if pending:
        try:
            with console.heartbeat(lambda: f"{done} of {len(names)} runs are finished"):
                for outcome in _outcomes(pending, loaded, folder, together):
                    folder.keep(outcome)
                    done += 1
                    console.tell(f"{done}/{len(names)} {_line(outcome)}")
        except KeyboardInterrupt:
            console.tell(f"interrupted after {done} of {len(names)} runs; the same command continues")
            raise
    _show(folder, loaded, job_sets, as_json)


def _outcomes(job_sets: Sequence[JobSet], base: Base, folder: RunsFolder, width: int) -> Iterator[Outcome]:
    for job_set in job_sets:
        yield from work.train_job_set(job_set, work.make_runs(base, job_set), width, folder.checkpoint_file, ignore)


def _line(outcome: Outcome) -> str:
    if outcome.record is None:
        return f"{outcome.name}: {outcome.error}"
    record = outcome.record
    metric = record["metric"]
    scores = [f"{split} {record[split][metric]:.4f}" for split in ("validation", "test") if record[split]]
    return f"{outcome.name}: {metric} {', '.join(scores)} ({record['seconds']:.0f} s)"


def _show(folder: RunsFolder, base: Base, job_sets: Sequence[work.JobSet], as_json: bool) -> None:
    names = [job.name for job_set in job_sets for job in job_set.jobs]
    finished = {name: folder.record_file(name) for name in names if folder.record_file(name).is_file()}
    failed = {name: error for name in names if (error := folder.error(name)) is not None}
    records = dict(zip(finished, load_records(finished.values()), strict=True)) if finished else {}
    results = collect(records.values())
    names_of = {id(record): name for name, record in records.items()}
    chosen = {names_of[id(run)]: run for result in results for run in choose(result)}
    pages = write_pages(base, folder, job_sets, chosen)
    publish = [_published(run, folder.delta_file(name), pages.get(name)) for name, run in chosen.items()]
    if as_json:
        cells = [_facts(trial) for result in results for trial in result.best.values()]
        console.print_json({"runs": len(records), "results": cells, "publish": publish, "failed": failed})
        return
    for result in results:
        _show_table(result)
    for run in publish:
        where = f"in {run['folds']} folds" if run["folds"] else "on validation"
        score = f"{run['metric']} {run['validation']:.4f} {where}"
        console.say(f"publish: {run['data']}: {run['method']}, {score}, {run['file']}")
        if run["page"]:
            console.say(f"page: {run['page']}")
    for name, error in failed.items():
        console.say(f"failed: {name}: {error}")


def _published(run: Record, file: Path, page: Path | None) -> dict[str, Any]:
    facts = {"data": run.data_name, "metric": run.metric, "validation": run.deciding_score, "folds": run.folds}
    return {**facts, "method": run.method, "seed": run.seed, "file": str(file), "page": page and str(page)}


def _facts(trial: Trial) -> Mapping[str, Any]:
    scores, column, run = [run.score for run in trial.runs], trial.column, trial.runs[0]
    return {
        **{"data": column.data, "train_rows": column.train_rows, "metric": column.metric, "split": column.split},
        **{"base": run.base, "method": run.method, "settings": dict(trial.configuration), "seeds": len(scores)},
        **{"mean": fmean(scores), "std": stdev(scores) if len(scores) > 1 else None},
    }


def _show_table(results: Results) -> None:
    columns = [f"{name}\n{sub}" for name, sub in headings(results)]
    rows = [
        # Without an average.
        (method, percent, *(text for text, _ in cells[: len(columns)]))
        for method, percent, cells in result_rows(results)
    ]
    console.say(f"{results.base}: mean ± standard deviation over the seeds, in per cent")
    console.show(("method", "% of parameters", *columns), rows, numbers=("% of parameters", *columns))


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
            measurements, _ = evaluate_delta(base, load(file), labeled)
        page.parent.mkdir(exist_ok=True)
        record = {**measurements, "file": str(file), **provenance()}
        write_whole(page, render_evaluation(record, page.parent).encode())
    return pages


def _measured(dataset: Dataset) -> Labeled:
    name = "test" if "test" in dataset.splits else "validation"
    return Labeled(name, dataset.splits[name], dataset.metric, dataset.name, Table({}))
