"""Measures a delta on labeled rows: computes its logits once, all measurements from them, and doubts about the rows."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onebert_encoder.answering.scores import score
from onebert_encoder.base.base import Base
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.errors import InvalidInput
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import Manifest
from onebert_store.tables.slices import cells_of
from onebert_training.data.dataset import Labeled, digest_of
from onebert_training.data.examples import Split
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.insight.answers import Answers, read_answers
from onebert_training.insight.decision_rules import has_probabilities, unknown_facts
from onebert_training.insight.findings import findings, interval_of
from onebert_training.tasks.objective import Logits, Objective
from onebert_training.tasks.objectives import OBJECTIVES


def evaluate_delta(
    base: Base, delta: Delta, labeled: Labeled, slices: Sequence[str] = (), unknown: Sequence[Text] = ()
) -> tuple[dict[str, Any], Answers]:
    """Measures a checked delta with its own thresholds, on texts truncated to its `max_length`.

    Returns the measurements as JSON values, and the answers to every row.

    Args:
        base: the frozen encoder.
        delta: the delta.
        labeled: the rows.
        slices: columns to slice the metric by.
        unknown: texts that belong to no label, to measure how well the delta separates them.

    Raises:
        InvalidInput: there are unknown texts, but the task has no probabilities.
        InvalidSettings: a slice's column does not exist.
        NotFinite: a logit is NaN or infinite.
    """
    manifest, examples = delta.manifest, labeled.split
    for column in slices:
        cells_of(labeled.table, column)  # fails here, before the slow work
    if unknown and not has_probabilities(manifest):
        raise InvalidInput("only single_label and multi_label tasks with probabilities take unknown texts")
    objective = OBJECTIVES[manifest.task_type](manifest.labels)
    started = time.perf_counter()
    tokens = tokenize(base, manifest, examples.texts)
    logits = predict_delta(base, delta, tokens)
    counted = thresholded(logits, manifest)
    scores = objective.evaluate(examples, tokens, counted)
    seconds = time.perf_counter() - started
    decides = deciding_metric(manifest, objective, labeled)
    verdict = objective.judge(examples, tokens, counted, scores, decides)
    answers = read_answers(manifest, examples, tokens, logits)
    interval = interval_of(decides, answers, objective, examples, tokens, counted)
    digest = digest_of(manifest.task_type, manifest.labels, {labeled.name: examples})
    doubts = [
        *labeled.notes,
        *trained_on(manifest, labeled.source, labeled.name),
        *calibrated_on(manifest, labeled.source, labeled.name, examples),
        *truncation_notes(tokens, manifest),
    ]
    record = {
        "digest": delta.digest,
        "task_type": manifest.task_type,
        "method": manifest.method,
        "base": base.spec.name,
        "data": {"name": labeled.source, "digest": digest},
        "split": labeled.name,
        "rows": len(examples),
        "decision": manifest.decision and manifest.decision.model_dump(exclude_none=True),
        "metric": decides,
        "metrics": scores,
        "interval": list(interval) if interval is not None and np.isfinite(interval).all() else None,
        "yardsticks": _baselines(objective, labeled, tokens, manifest, decides),
        "warnings": [*verdict.warnings, *doubts],
        "useful": verdict.useful,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(sum(map(len, tokens)) / seconds),
        **findings(answers, manifest.labels, examples, labeled.table, slices),
        "unknown": _unknown(base, delta, logits, unknown),
    }
    return record, answers


def deciding_metric(manifest: Manifest, objective: Objective, labeled: Labeled) -> str:
    """The metric that decided in training, if the file names one of this task type; otherwise the rows' default."""
    recorded = manifest.training.get("metric")
    return str(recorded) if recorded in objective.metrics else objective.decides(labeled.split, labeled.metric)


def _unknown(base: Base, delta: Delta, known: Sequence[Logits], texts: Sequence[Text]) -> dict[str, Any] | None:
    if not texts:
        return None
    unknown = predict_delta(base, delta, tokenize(base, delta.manifest, texts))
    known_logits, unknown_logits = (np.stack(logits).astype(np.float64) for logits in (known, unknown))
    return unknown_facts(known_logits, unknown_logits, delta.manifest)


def _baselines(
    objective: Objective, labeled: Labeled, tokens: Sequence[Tokens], manifest: Manifest, metric: str
) -> list[dict[str, Any]]:
    """Scores of cheap baselines: the best constant answer and, if the file records it, the head on the bare base."""
    baselines, examples = [], labeled.split
    if (constant := objective.best_constant(examples, tokens, metric)) is not None:
        baselines.append({"name": f"always {constant[0].answer}", "metrics": constant[1]})
    score: Any = manifest.training
    for key in ("yardsticks", "head", labeled.name):
        score = score.get(key) if isinstance(score, dict) else None
    recorded = manifest.training.get("data")
    data = recorded if isinstance(recorded, dict) else {}
    same = data.get("name") == labeled.source
    # The recorded score is in training's metric, and belongs to the splits of the training data.
    if same and manifest.training.get("metric") == metric and isinstance(score, int | float) and np.isfinite(score):
        # Training's split may have had other rows, for example a share that training held out.
        rows = data.get("rows")
        count = rows.get(labeled.name) if isinstance(rows, dict) else None
        where = f" ({labeled.name}, {count:,} rows)" if isinstance(count, int) else ""
        baselines.append({"name": f"head alone, in training{where}", "metrics": {metric: float(score)}})
    return baselines


def thresholded(logits: Sequence[Logits], manifest: Manifest) -> Sequence[Logits]:
    """The logits that metrics read; for multi_label, +1 where the delta's thresholds select a label, else -1."""
    if manifest.task_type != "multi_label":
        return logits
    selected = np.asarray(score(np.stack(logits).astype(np.float64), manifest).selected, dtype=bool)
    return list(np.where(selected, np.float32(1), np.float32(-1)))


def trained_on(manifest: Manifest, data: str, split: str) -> list[str]:
    """Warns when the rows may be training rows: split `all` or `train` of data with the name of the training data."""
    trained = manifest.training.get("data")
    if split not in ("all", "train") or not isinstance(trained, Mapping) or trained.get("name") != data:
        return []
    return [
        "the delta was trained on data of this name; scores on training rows are too high: "
        "evaluate on other rows if these are among them"
    ]


def calibrated_on(manifest: Manifest, data: str, split: str, examples: Split) -> list[str]:
    """Warns when the digest shows that the delta was calibrated on these rows, or when the data's name suggests it."""
    calibration = manifest.training.get("calibration")
    known = calibration.get("data") if isinstance(calibration, Mapping) else None
    if not isinstance(calibration, Mapping) or not isinstance(known, Mapping):
        return []
    too_much = "overstate its temperature, thresholds and rule for abstaining"
    # The digest covers the split's name, which a lone file does not have.
    named = {str(calibration.get("split")): examples}
    if known.get("digest") == digest_of(manifest.task_type, manifest.labels, named):
        return [f"the delta was calibrated on these rows, which {too_much}: evaluate on others"]
    may_be = split == calibration.get("split") or "all" in (split, calibration.get("split"))
    if known.get("name") != data or not may_be:
        return []
    return [
        f"the delta was calibrated on data of this name; rows that it was calibrated on {too_much}: "
        "evaluate on other rows if these are among them"
    ]


def truncation_notes(tokens: Sequence[Tokens], manifest: Manifest) -> list[str]:
    """Counts the texts truncated at `max_length`, and warns when a server reads more of them."""
    window = None if manifest.decision is None else manifest.decision.window
    longer = sum(text.truncated or (window is not None and len(text) > window.tokens) for text in tokens)
    if not longer:
        return []
    if window is not None:
        return [f"{longer:,} texts are longer than a window: a server reads them whole, and here they are truncated"]
    return [
        f"{longer:,} texts are truncated to {manifest.max_length} tokens, as by a server; "
        "clients that cannot be told of truncation get the answer of all windows, which is surer"
    ]
