"""What `onebert evaluate` does: load, compute, show."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from onebert_encoder.answering.scores import score
from onebert_encoder.maths.fold import fold, to_tensors
from onebert_encoder.text.tokens import Tokens
from onebert_store.command import console
from onebert_store.file.delta import check
from onebert_store.file.format import load
from onebert_store.file.manifest import Manifest
from onebert_training.commands.showing import show_evaluated
from onebert_training.data.dataset import load_split
from onebert_training.data.options import ReadOptions
from onebert_training.device import load_on
from onebert_training.fit.evaluation import Logits, predict
from onebert_training.fit.features import Inputs
from onebert_training.tasks.metrics import check_finite
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
        if manifest.task_type == "multi_label":
            logits = _selected(logits, manifest)
        scores = objective.evaluate(examples, tokens, logits)
    seconds = time.perf_counter() - started
    # The file may name the metric that decided in training; if this task type has that metric, it decides here, too.
    recorded = manifest.training.get("metric")
    decides = str(recorded) if recorded in objective.metrics else objective.decides(examples, metric)
    verdict = objective.judge(examples, tokens, logits, scores, decides)
    record = {
        "digest": delta.digest,
        "split": name,
        "rows": len(examples),
        "metric": decides,
        "metrics": scores,
        "warnings": [*verdict.warnings, *_unread(tokens, manifest)],
        "useful": verdict.useful,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(sum(map(len, tokens)) / seconds),
    }
    if as_json:
        console.print_json(record)
    else:
        show_evaluated(record)


def _selected(logits: Sequence[Logits], manifest: Manifest) -> list[Logits]:
    """[labels] for every text, above 0 where a server's answer has the label: by the delta's own thresholds.

    Raises:
        NotFinite: a logit is NaN or infinite.
    """
    check_finite(logits)
    selected = np.asarray(score(np.stack(logits).astype(np.float64), manifest).selected, dtype=bool)
    return list(np.where(selected, np.float32(1), np.float32(-1)))


def _unread(tokens: Sequence[Tokens], manifest: Manifest) -> list[str]:
    """Says of how many texts a server reads more than their beginning."""
    window = None if manifest.decision is None else manifest.decision.window
    longer = sum(one.truncated or (window is not None and len(one) > window.tokens) for one in tokens)
    if window is None or not longer:
        return []
    return [f"{longer:,} texts are longer than a window: a server reads them whole, and here their beginning is read"]
