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
from onebert_store.file.fingerprint import overlap_of
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
    counted = counted_logits(logits, manifest, tokens)
    scores = objective.score(examples, objective.read(examples, tokens, counted))
    seconds = time.perf_counter() - started
    decides = deciding_metric(manifest, objective, labeled)
    verdict = objective.judge(examples, tokens, counted, scores, decides)
    answers = read_answers(manifest, examples, tokens, logits)
    interval = interval_of(decides, answers, objective, examples, tokens, counted)
    digest = digest_of(manifest.task_type, manifest.labels, {labeled.name: examples})
    overlap = overlap_of(manifest, examples.texts)
    doubts = [
        *labeled.notes,
        *overlap.note,
        *calibrated_on(manifest, examples),
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
        "trained_on": overlap.rows,
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
    score = _object(_object(manifest.training, "yardsticks"), "head").get(labeled.name)
    # The recorded score is in training's metric, and of the rows of a split.
    same = manifest.training.get("metric") == metric and is_split(manifest, labeled.name, examples)
    if same and isinstance(score, int | float) and np.isfinite(score):
        baselines.append({"name": "head alone, in training", "metrics": {metric: float(score)}})
    return baselines


def counted_logits(logits: Sequence[Logits], manifest: Manifest, tokens: Sequence[Tokens]) -> Sequence[Logits]:
    """The logits that metrics read: NaN where the delta abstains; for multi_label ±1, whether it selects a label."""
    if manifest.task_type not in ("single_label", "multi_label"):
        return logits
    counted = np.stack(logits)
    scored = score(counted.astype(np.float64), manifest, truncated=[text.truncated for text in tokens])
    if manifest.task_type == "multi_label":
        counted = np.where(np.asarray(scored.selected, dtype=bool), np.float32(1), np.float32(-1))
    if scored.abstained is not None:
        counted[np.asarray(scored.abstained, dtype=bool)] = np.nan
    return list(counted)


def is_split(manifest: Manifest, name: str, examples: Split) -> bool:
    """Whether these are the rows of a split that training measured."""
    return same_rows(manifest, examples, name, _object(_object(manifest.training, "data"), "measured").get(name))


def calibrated_on(manifest: Manifest, examples: Split) -> list[str]:
    """Warns when the delta was calibrated on these rows."""
    calibration = _object(manifest.training, "calibration")
    if not same_rows(manifest, examples, str(calibration.get("split")), _object(calibration, "data").get("digest")):
        return []
    too_much = "overstate its temperature, thresholds and rule for abstaining"
    return [f"the delta was calibrated on these rows, which {too_much}: evaluate on others"]


def same_rows(manifest: Manifest, examples: Split, split: str, digest: Any) -> bool:
    """Whether a digest is of these rows, as a split of this name: a lone file has none."""
    return bool(digest == digest_of(manifest.task_type, manifest.labels, {split: examples}))


def _object(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, dict) else {}


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
