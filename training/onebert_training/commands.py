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
from onebert_store.delta import ADAPTER_DOWN, check
from onebert_store.errors import InvalidSettings
from onebert_store.format import load, save
from onebert_store.manifest import TaskType
from onebert_store.names import check_name
from onebert_training.cells import Columns
from onebert_training.checkpoint import checkpoint_path
from onebert_training.data import load_dataset, load_split
from onebert_training.evaluation import predict
from onebert_training.features import Inputs
from onebert_training.interop.folders import check_free
from onebert_training.interop.merged import HEAD_FILE, merge, write_checkpoint
from onebert_training.loop import Progress, train
from onebert_training.metrics import choose_metric
from onebert_training.objectives import OBJECTIVES
from onebert_training.record import make_record
from onebert_training.result import Result
from onebert_training.run import Run, Settings, TaskInputs


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
    out: Path | None,
    as_json: bool,
) -> None:
    """Trains, writes the file and shows the record; everything that can be refused is, before the base is loaded."""
    check_name(task)
    if settings.learning_rate is not None and not 0 < settings.learning_rate < float("inf"):
        raise InvalidSettings("--lr is a number above 0")
    if out is not None:
        _check_out(out)
    dataset = load_dataset(data, columns, task_type, train_rows)
    with console.busy("loading the base and tokenizing"):
        inputs = TaskInputs(load_on(base, dtype, device), dataset, settings.max_length)
        inputs.check_targets()
        run = Run(inputs, settings, task)
    out = out or Path(f"{task}.safetensors" if run.plan.servable else task)
    _check_result(run, out)
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
    write_result(run, result, out, base)
    checkpoint.unlink(missing_ok=True)
    files = [out] if out.is_file() else list(out.iterdir())
    record = make_record(run, result, sum(file.stat().st_size for file in files), train_rows) | {"out": str(out)}
    if as_json:
        console.print_json(record)
    else:
        console.out.print(_train_table(record))
        if result.delta is not None:
            console.out.print(f"next: onebert push {out} --task {task}", soft_wrap=True)


def write_result(run: Run, result: Result, out: Path, base: str | None) -> None:
    """Writes the delta file, or the Hugging Face checkpoint where a delta cannot hold what was trained."""
    if result.delta is not None:
        save(out, result.delta)
        return
    head = {name: tensor for name, tensor in result.differences.items() if name.startswith("head.")}
    kind = write_checkpoint(out, base, merge(result.base, result.differences), head, run.manifest)
    beside = f", its classifier in {HEAD_FILE} beside it" if kind == "AutoModel" else ""
    _say(f"note: {run.method.text} changes the base itself, which a delta cannot; {out} is for {kind}{beside}")


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
        loaded = load_on(base, dtype, device)
    check(delta, loaded.spec)
    name, examples, metric = load_split(data, columns, manifest.task_type, manifest.labels, split)
    objective = OBJECTIVES[manifest.task_type](manifest.labels)
    started = time.perf_counter()
    with console.busy(f"evaluating {len(examples):,} rows"):
        tokens = loaded.tokenizer.encode(examples.texts, manifest.max_length, align=manifest.per_token)
        with torch.no_grad():
            row = fold(loaded, to_tensors(delta, loaded), manifest.pooling)
        features = Inputs(loaded, tokens).features(0, manifest.pooling)
        scores = objective.evaluate(examples, tokens, predict(loaded, row, features))
    seconds = time.perf_counter() - started
    # The metric that training decided by, as far as the file says a sensible one.
    recorded = manifest.training.get("metric")
    record = {
        "digest": delta.digest,
        "split": name,
        "rows": len(examples),
        "metric": recorded if recorded in objective.metrics else choose_metric(objective.metrics, metric),
        "metrics": scores,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(sum(map(len, tokens)) / seconds),
    }
    if as_json:
        console.print_json(record)
    else:
        console.out.print(_evaluate_table(record))


def load_on(base: str | None, dtype: str, device: str | None) -> Base:
    """Loads a base on the device that was asked for, else on CUDA where there is one.

    Raises:
        InvalidSettings: there is no such device.
    """
    cuda = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    device = device or ("cuda" if cuda else "cpu")
    if device not in ("cpu", *(["cuda", *cuda] if cuda else [])):
        raise InvalidSettings("--device is cpu, cuda or cuda:N, and one that this machine has")
    return load_base(base, dtype={"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype], device=device)


def _check_out(out: Path) -> None:
    if not out.parent.is_dir():
        raise InvalidSettings(f"the folder of --out {out} does not exist")
    if out.is_dir():
        raise InvalidSettings(f"--out {out} is a folder; it names what to write")


def _check_result(run: Run, out: Path) -> None:
    """Refuses what could not be written once training is over."""
    if run.plan.servable:
        _check_out(out)
        return
    check_free(out)
    if any(part.prefix == ADAPTER_DOWN for part in run.plan.parts):
        raise InvalidSettings(f"{run.method.text} gives neither a delta nor a checkpoint that could be written")


def _say(line: str) -> None:
    console.err.print(line, soft_wrap=True)


def _summary(run: Run) -> str:
    """The count as the papers print it: number and per cent of the base, the classifier apart."""
    what = run.data.task_type + (f" of {len(run.data.labels)} labels" if len(run.data.labels) > 1 else "")
    trained = f"{run.delta_parameters:,} parameters, {run.percent:.2f} % of the {run.base.spec.num_parameters:,}"
    return (
        f"{run.task}, {what}: {run.method.text} trains {trained} of {run.base.spec.name}, "
        f"and {run.head_parameters:,} of the classifier"
    )


def _train_shown(run: Run, checkpoint: Path) -> Result:
    with console.progress() as bar:
        shown = bar.add_task("training", total=run.steps)

        def report(run: Run, progress: Progress) -> None:
            loss = "" if progress.loss is None else f"  loss {progress.loss:.4f}"
            what = "testing" if progress.testing else f"training{loss}"
            bar.update(shown, completed=progress.step, description=what)
            if progress.note:
                _say(f"note: {progress.note}")
            if progress.validation:
                score = f"validation {run.metric} {progress.validation[run.metric]:.4f}"
                _say(f"step {progress.step}/{progress.steps}{loss}  {score}")

        return train(run, report, checkpoint)


def _train_table(record: Mapping[str, Any]) -> Table:
    table = _facts(f"{record['task']}: {record['method']} on {record['base']}")
    table.add_row("task type", record["task_type"])
    for split in ("validation", "test"):
        if record[split] is not None:
            table.add_row(split, _scores(record["metric"], record[split]))
    table.add_row("trained parameters", f"{record['delta_parameters']:,} ({record['percent']:.2f} % of the base)")
    table.add_row("classifier", f"{record['head_parameters']:,} parameters")
    table.add_row("steps", f"{record['steps']:,}, best at {record['best_step']:,}")
    table.add_row("file", f"{record['out']}, {record['file_bytes']:,} bytes")
    table.add_row("time", f"{record['seconds']:.1f} s, {record['tokens_per_second']:,} tokens/s in training")
    if record["digest"] is not None:
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
