"""What `onebert train` and `onebert evaluate` do: load, run, show."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from onebert_encoder.base import Base, load_base
from onebert_encoder.fold import fold, to_tensors
from onebert_store import console
from onebert_store.delta import check
from onebert_store.errors import InvalidSettings
from onebert_store.format import load, save
from onebert_store.manifest import Manifest, TaskType
from onebert_store.names import check_name
from onebert_training.cells import Columns
from onebert_training.checkpoint import checkpoint_path
from onebert_training.data import load_dataset, load_split
from onebert_training.evaluation import predict
from onebert_training.loop import Progress, Result, train
from onebert_training.metrics import evaluate_predictions, metric_names, primary_metric
from onebert_training.run import Run, Settings


def run_train(
    task: str,
    data: str,
    columns: Columns,
    task_type: TaskType | None,
    train_rows: int | None,
    base: str | None,
    dtype: str,
    device: str | None,
    settings: Settings,
    out: Path,
    as_json: bool,
) -> None:
    """Trains, writes the file and shows the record; everything that can be refused is, before the base is loaded."""
    check_name(task)
    if not out.parent.is_dir():
        raise InvalidSettings(f"the folder of --out {out} does not exist")
    if out.is_dir():
        raise InvalidSettings(f"--out {out} is a folder; it names the file to write")
    if settings.learning_rate is not None and not 0 < settings.learning_rate < float("inf"):
        raise InvalidSettings("--lr is a number above 0")
    dataset = load_dataset(data, columns, task_type, train_rows)
    with console.busy("loading the base and tokenizing"):
        run = Run(_load(base, dtype, device), dataset, settings, task)
    _say(_summary(run))
    for note in run.notes:
        _say(f"note: {note}")
    checkpoint = checkpoint_path(out)
    try:
        result = _train_shown(run, checkpoint)
    except KeyboardInterrupt:
        if checkpoint.exists():
            _say("interrupted; the same command continues from the last evaluation")
        raise
    save(out, result.delta)
    checkpoint.unlink(missing_ok=True)
    record = _record(run, result, out)
    if as_json:
        console.print_json(record)
    else:
        console.out.print(_train_table(record))
        console.out.print(f"next: onebert push {out} --task {task}", soft_wrap=True)


def run_evaluate(
    file: Path,
    data: str,
    split: str | None,
    columns: Columns,
    base: str | None,
    dtype: str,
    device: str | None,
    as_json: bool,
) -> None:
    """Computes a delta file's metrics on one split and shows them."""
    delta = load(file)
    manifest = delta.manifest
    # The base is the caller's to name: a file never decides what is loaded.
    with console.busy("loading the base"):
        loaded = _load(base, dtype, device)
    check(delta, loaded.spec)
    name, examples, metric = load_split(data, columns, manifest.task_type, manifest.labels, split)
    started = time.perf_counter()
    with console.busy(f"evaluating {len(examples):,} rows"):
        tokens = loaded.tokenizer.encode(examples.texts, manifest.max_length)
        with torch.no_grad():
            row = fold(loaded, to_tensors(delta, loaded), manifest.pooling)
        scores = evaluate_predictions(manifest.task_type, examples.gold, predict(loaded, row, tokens))
    seconds = time.perf_counter() - started
    record = {
        "digest": delta.digest,
        "split": name,
        "rows": len(examples),
        "metric": _deciding(manifest, metric),
        "metrics": scores,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(sum(map(len, tokens)) / seconds),
    }
    if as_json:
        console.print_json(record)
    else:
        console.out.print(_evaluate_table(record))


def _load(base: str | None, dtype: str, device: str | None) -> Base:
    cuda = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    device = device or ("cuda" if cuda else "cpu")
    if device not in ("cpu", *(["cuda", *cuda] if cuda else [])):
        raise InvalidSettings("--device is cpu, cuda or cuda:N, and one that this machine has")
    return load_base(base, dtype={"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype], device=device)


def _say(line: str) -> None:
    console.err.print(line, soft_wrap=True)


def _summary(run: Run) -> str:
    """The count as the papers print it: number and per cent of the base, the classifier apart."""
    return (
        f"{run.task}: {run.method.text} trains {run.delta_parameters:,} parameters, {run.percent:.2f} % of the "
        f"{run.base.spec.num_parameters:,} of {run.base.spec.name}, and {run.head_parameters:,} of the classifier"
    )


def _train_shown(run: Run, checkpoint: Path) -> Result:
    with console.progress() as bar:
        shown = bar.add_task("training", total=run.steps)

        def report(progress: Progress) -> None:
            loss = "" if progress.loss is None else f"  loss {progress.loss:.4f}"
            what = "testing" if progress.testing else f"training{loss}"
            bar.update(shown, completed=progress.step, description=what)
            if progress.note:
                _say(f"note: {progress.note}")
            if progress.validation:
                score = f"validation {run.metric} {progress.validation[run.metric]:.4f}"
                _say(f"step {progress.step}/{progress.steps}{loss}  {score}")

        return train(run, report, checkpoint)


def _record(run: Run, result: Result, out: Path) -> dict[str, Any]:
    return {
        "task": run.task,
        "task_type": run.data.task_type,
        "method": run.method.text,
        "base": run.base.spec.name,
        "metric": result.metric,
        "validation": dict(result.validation),
        "test": dict(result.test) if result.test is not None else None,
        "rows": {name: len(split) for name, split in run.data.splits.items()},
        "delta_parameters": run.delta_parameters,
        "head_parameters": run.head_parameters,
        "percent": round(run.percent, 4),
        "learning_rate": run.learning_rate,
        "seed": run.settings.seed,
        "steps": result.steps,
        "best_step": result.best_step,
        "resumed_at": result.resumed_at,
        "file_bytes": out.stat().st_size,
        "seconds": round(result.seconds, 3),
        "tokens_per_second": round(result.tokens_per_second),
        "device": str(run.base.device),
        "dtype": str(run.base.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "notes": list(run.notes),
        "digest": result.delta.digest,
        "out": str(out),
    }


def _train_table(record: Mapping[str, Any]) -> Table:
    table = _facts(f"{record['task']}: {record['method']} on {record['base']}")
    for split in ("validation", "test"):
        if record[split] is not None:
            table.add_row(split, _scores(record["metric"], record[split]))
    table.add_row("trained parameters", f"{record['delta_parameters']:,} ({record['percent']:.2f} % of the base)")
    table.add_row("classifier", f"{record['head_parameters']:,} parameters")
    table.add_row("steps", f"{record['steps']:,}, best at {record['best_step']:,}")
    table.add_row("file", f"{record['out']}, {record['file_bytes']:,} bytes")
    table.add_row("time", f"{record['seconds']:.1f} s, {record['tokens_per_second']:,} tokens/s in training")
    table.add_row("digest", record["digest"])
    return table


def _evaluate_table(record: Mapping[str, Any]) -> Table:
    table = _facts(f"{record['split']}: {record['rows']:,} rows")
    table.add_row("metrics", _scores(record["metric"], record["metrics"]))
    table.add_row("time", f"{record['seconds']:.1f} s, {record['tokens_per_second']:,} tokens/s")
    table.add_row("digest", record["digest"])
    return table


def _facts(title: str) -> Table:
    table = Table(title=title, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _scores(metric: str, scores: Mapping[str, float]) -> str:
    """All metrics, the deciding one first."""
    return ", ".join(f"{name} {scores[name]:.4f}" for name in sorted(scores, key=lambda name: name != metric))


def _deciding(manifest: Manifest, from_data: str | None) -> str:
    """The metric that training decided by, as far as the file says a sensible one."""
    recorded = manifest.training.get("metric")
    if recorded in metric_names(manifest.task_type, len(manifest.labels)):
        return str(recorded)
    return primary_metric(manifest.task_type, len(manifest.labels), from_data)
