"""What `onebert evaluate` does: load, compute, show."""

import time
from pathlib import Path

import torch

from onebert_encoder.maths.fold import fold, to_tensors
from onebert_store.command import console
from onebert_store.file.delta import check
from onebert_store.file.format import load
from onebert_training.commands.showing import show_evaluated
from onebert_training.data.dataset import load_split
from onebert_training.data.options import ReadOptions
from onebert_training.device import load_on
from onebert_training.fit.evaluation import predict
from onebert_training.fit.features import Inputs
from onebert_training.tasks.metrics import choose_metric
from onebert_training.tasks.objectives import OBJECTIVES


def run_evaluate(
    file: Path,
    data: str,
    split: str | None,
    reading: ReadOptions,
    base: str | None,
    dtype: str,
    device: str | None,
    as_json: bool,
) -> None:
    """Computes a delta file's metrics on one split and shows them."""
    delta = load(file)
    manifest = delta.manifest
    # The base is the one that the user names: a delta file, which may be anybody's, must not decide what is loaded.
    with console.busy("loading the base"):
        loaded = load_on(base, dtype, device)
    check(delta, loaded.spec)
    name, examples, metric = load_split(
        data, reading.columns, manifest.task_type, manifest.labels, split, reading.encoding, reading.drop_unlabeled
    )
    objective = OBJECTIVES[manifest.task_type](manifest.labels)
    started = time.perf_counter()
    with console.busy(f"evaluating {len(examples):,} rows"):
        tokens = loaded.tokenizer.encode(examples.texts, manifest.max_length, align=manifest.per_token)
        with torch.no_grad():
            row = fold(loaded, to_tensors(delta, loaded), manifest.pooling)
        features = Inputs(loaded, tokens).features(0, manifest.pooling)
        logits = predict(loaded, row, features)
        scores = objective.evaluate(examples, tokens, logits)
    seconds = time.perf_counter() - started
    # The file may name the metric that decided in training; if this task type has that metric, it decides here, too.
    recorded = manifest.training.get("metric")
    decides = str(recorded) if recorded in objective.metrics else choose_metric(objective.metrics, metric)
    verdict = objective.judge(examples, tokens, logits, scores, decides)
    record = {
        "digest": delta.digest,
        "split": name,
        "rows": len(examples),
        "metric": decides,
        "metrics": scores,
        "warnings": list(verdict.warnings),
        "useful": verdict.useful,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(sum(map(len, tokens)) / seconds),
    }
    if as_json:
        console.print_json(record)
    else:
        show_evaluated(record)
