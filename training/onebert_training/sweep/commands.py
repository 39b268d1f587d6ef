"""What `onebert sweep` does: expand, skip what is finished, train the rest, show the results and what to publish."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from onebert_encoder.base import Base
from onebert_store import console
from onebert_store.errors import OneBertError
from onebert_training.commands import load_on
from onebert_training.loop import ignore
from onebert_training.recipe import load_recipe
from onebert_training.report.records import Record, load_records
from onebert_training.report.tables import Cell, Results, collect, format_entry, format_percent, headings
from onebert_training.sweep.jobs import Outcome, RunsFolder
from onebert_training.sweep.work import WIDTH, Execute, Lot, make_lots, make_runs, make_sample_runs, train_lot


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
        # With a cluster, nothing is trained here.
        loaded = load_on(base, dtype, "cpu" if ray else device)
    with console.busy("loading data"):
        lots = make_lots(requests, loaded.spec, dtype)
        for lot in lots:
            make_sample_runs(loaded, lot)
    folder = RunsFolder(out)
    names = [job.name for lot in lots for job in lot.jobs]
    pending = [left for lot in lots if (left := _without_finished(lot, folder)).jobs]
    done = len(names) - sum(len(lot.jobs) for lot in pending)
    _say(f"{loaded_recipe.name}: {len(names)} runs, {done} of them finished before")
    lost = 0
    if pending:
        execute = _here(loaded, folder, together)
        if ray is not None:
            # Ray is an extra, and slow to import.
            from onebert_training.sweep.ray_cluster import on_cluster  # noqa: PLC0415

            execute = on_cluster(ray, loaded, base, dtype, device, together)
        try:
            for outcome in execute(pending):
                folder.keep(outcome)
                lost += outcome.lost
                done += 1
                _say(f"{done}/{len(names)} {_line(outcome)}")
        except KeyboardInterrupt:
            _say(f"interrupted after {done} of {len(names)} runs; the same command continues")
            raise
    _show(folder, names, as_json)
    if lost:
        raise OneBertError(f"{lost} of {len(names)} runs were lost; the same command tries them again")


def _without_finished(lot: Lot, folder: RunsFolder) -> Lot:
    return replace(lot, jobs=tuple(job for job in lot.jobs if folder.is_pending(job)))


def _here(base: Base, folder: RunsFolder, width: int | None) -> Execute:
    """Trains lot after lot on this machine."""

    def execute(lots: Sequence[Lot]) -> Iterator[Outcome]:
        most = width or WIDTH[base.device.type]
        for lot in lots:
            yield from train_lot(lot, make_runs(base, lot), most, folder.checkpoint_file, ignore)

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
    names_of = {id(record): name for name, record in records.items()}
    publish = [_published(run, folder.delta_file(names_of[id(run)])) for one in results for run in choose(one)]
    if as_json:
        cells = [_facts(cell) for one in results for cell in one.best.values()]
        console.print_json({"runs": len(records), "results": cells, "publish": publish, "failed": failed})
        return
    for one in results:
        console.out.print(_table(one))
    for run in publish:
        score = f"{run['metric']} {run['validation']:.4f} on validation"
        console.out.print(f"publish: {run['data']}: {run['method']}, {score}, {run['file']}", soft_wrap=True)
    for name, error in failed.items():
        console.out.print(f"failed: {name}: {error}", soft_wrap=True)


def choose(results: Results) -> list[Record]:
    """The run to publish for each data set and metric.

    Of the settings whose mean over the seeds is best on the validation split, it is the seed that is best there; runs
    that have no delta do not count.
    """
    cells: dict[tuple[str, str], list[Cell]] = {}
    for cell in results.best.values():
        if all(run.file_bytes is not None for run in cell.runs):
            cells.setdefault((cell.column.data, cell.column.metric), []).append(cell)
    best = [max(own, key=lambda cell: cell.column.sign * cell.validation) for own in cells.values()]
    return [max(cell.runs, key=lambda run: cell.column.sign * run.decided) for cell in best]


def _published(run: Record, file: Path) -> dict[str, Any]:
    facts = {"data": run.data_name, "metric": run.metric, "validation": run.decided, "method": run.method}
    return {**facts, "seed": run.seed, "file": str(file)}


def _facts(cell: Cell) -> Mapping[str, Any]:
    """One entry of the table in the records' own units."""
    scores, column, run = [run.score for run in cell.runs], cell.column, cell.runs[0]
    return {
        **{"data": column.data, "train_rows": column.train_rows, "metric": column.metric, "split": column.split},
        **{"base": run.base, "method": run.method, "settings": dict(cell.configuration), "seeds": len(scores)},
        **{"mean": fmean(scores), "std": stdev(scores) if len(scores) > 1 else None},
    }


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
