"""What `onebert sweep` does: expand, skip what is finished, train the rest, show the results and what to publish."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from onebert_encoder.base import Base
from onebert_store import console
from onebert_training.commands import load_on
from onebert_training.loop import ignore
from onebert_training.recipe import load_recipe
from onebert_training.report.records import Record, load_records
from onebert_training.report.tables import Results, collect, format_entry, format_percent, headings
from onebert_training.sweep.jobs import Outcome, RunsFolder, name_jobs
from onebert_training.sweep.work import Lot, make_lots, make_runs, train_lot

# What steps together: on a CPU a batch of a few runs already fills the caches, a GPU wants more.
WIDTH = {"cpu": 4, "cuda": 16}

Execute = Callable[[Sequence[Lot]], Iterator[Outcome]]


def run_sweep(
    recipe: Path,
    data: Path | None,
    out: Path,
    only: Collection[str],
    base: str | None,
    dtype: str,
    device: str | None,
    together: int | None,
    ray: str | None,
    as_json: bool,
) -> None:
    """Runs what is left of a recipe; everything that can be refused is, before the first run."""
    loaded_recipe = load_recipe(recipe)
    requests = loaded_recipe.runs(data, only)
    with console.busy("loading the base"):
        loaded = load_on(base, dtype, device)
    folder = RunsFolder(out)
    jobs = name_jobs(requests, loaded.spec, dtype)
    pending = folder.pending(jobs)
    _say(f"{loaded_recipe.name}: {len(jobs)} runs, {len(jobs) - len(pending)} of them finished before")
    with console.busy("loading data"):
        lots = make_lots(pending)
    for lot in lots:
        make_runs(loaded, lot)  # refuses now what would be refused in hours
    width = together or WIDTH[loaded.device.type]
    if ray is None:
        execute = _here(loaded, folder, width)
    else:
        # Ray is an extra, and slow to import.
        from onebert_training.sweep.ray_cluster import on_cluster  # noqa: PLC0415

        execute = on_cluster(ray, base, dtype, device, width)
    done = len(jobs) - len(pending)
    for outcome in execute(lots):
        folder.keep(outcome)
        done += 1
        _say(f"{done}/{len(jobs)} {_line(outcome)}")
    _show(folder, [job.name for job in jobs], as_json)


def _here(base: Base, folder: RunsFolder, width: int) -> Execute:
    """Trains lot after lot on this machine."""

    def execute(lots: Sequence[Lot]) -> Iterator[Outcome]:
        for lot in lots:
            yield from train_lot(lot, make_runs(base, lot), width, folder.checkpoint_file, ignore)

    return execute


def _line(outcome: Outcome) -> str:
    if outcome.record is None:
        return f"{outcome.name}: {outcome.error}"
    record = outcome.record
    metric = record["metric"]
    scores = [f"{split} {record[split][metric]:.4f}" for split in ("validation", "test") if record[split]]
    return f"{outcome.name}: {metric} {', '.join(scores)} ({record['seconds']:.0f} s)"


def _show(folder: RunsFolder, names: Sequence[str], as_json: bool) -> None:
    """The results of these runs, mean and deviation over the seeds, and for every data set the delta to publish."""
    finished = {name: folder.record_file(name) for name in names if folder.record_file(name).is_file()}
    failed = {name: error for name in names if (error := folder.error(name)) is not None}
    records = dict(zip(finished, load_records(finished.values()), strict=True)) if finished else {}
    results = collect(records.values())
    best = [one for result in results for one in _to_publish(result, records, folder)]
    if as_json:
        console.print_json({"runs": len(records), "failed": failed, "publish": best})
        return
    for result in results:
        console.out.print(_table(result))
    for one in best:
        line = f"{one['data']}: {one['method']}, {one['metric']} {one['validation']:.4f} on validation, {one['file']}"
        console.out.print(f"publish: {line}", soft_wrap=True)
    for name, error in failed.items():
        console.out.print(f"failed: {name}: {error}", soft_wrap=True)


def _to_publish(results: Results, records: dict[str, Record], folder: RunsFolder) -> list[dict[str, Any]]:
    """Of every data set the delta with the best validation, from the settings whose mean over the seeds is best."""
    names = {id(record): name for name, record in records.items()}
    chosen: list[dict[str, Any]] = []
    for column in results.columns:
        cells = [cell for (_, where), cell in results.best.items() if where == column]
        servable = [cell for cell in cells if folder.delta_file(names[id(cell.runs[0])]).is_file()]
        if not servable:
            continue
        sign = column.sign
        run = max(max(servable, key=lambda cell: sign * cell.validation).runs, key=lambda run: sign * run.decided)
        file = folder.delta_file(names[id(run)])
        chosen.append(
            {
                "data": column.data,
                "metric": column.metric,
                "method": run.method,
                "validation": run.decided,
                "file": str(file),
            }
        )
    return chosen


def _table(results: Results) -> Table:
    """Methods as rows, data sets as columns, in the papers' form."""
    table = Table(title=f"{results.base}: mean ± standard deviation over the seeds, in hundredths")
    table.add_column("method", overflow="fold")
    table.add_column("% of parameters", justify="right")
    for name, sub in headings(results):
        table.add_column(f"{name}\n{sub}", justify="right")
    for method in results.methods:
        cells = [format_entry(results, method, column) for column in results.columns]
        table.add_row(method, format_percent(results.runs_of(method)[0]), *cells)
    return table


def _say(line: str) -> None:
    console.err.print(line, soft_wrap=True)
