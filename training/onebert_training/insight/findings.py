"""Measurements of bounded size as JSON values, for reports and for `--json`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from onebert_encoder.text.tokens import Tokens, named_halves
from onebert_store.file.strict_json import printable
from onebert_store.tables.table import Table
from onebert_training.data.examples import Split
from onebert_training.insight.answers import Answers
from onebert_training.insight.classes import (
    BINS,
    MATRIX_LABELS,
    Counts,
    calibration_curve,
    confusion_matrix,
    expected_calibration_error,
    top_pairs,
)
from onebert_training.insight.intervals import Interval, bootstrap, plain, wilson
from onebert_training.insight.slices import metric_and_interval, slice_by
from onebert_training.tasks.objective import Logits, Objective

MAX_CLASSES = 500
MAX_WORST = 20
MAX_TEXT = 500  # characters shown of a text
MAX_WORDS = 20  # wrong words shown of a tagged text
MAX_POINTS = 500


def findings(
    answers: Answers, labels: Sequence[str], split: Split, table: Table, slices: Sequence[str]
) -> dict[str, Any]:
    """Measurements of the answers, None for parts the task type lacks; raises InvalidSettings for a missing column."""
    return {
        "classes": _classes(answers.counts),
        "entities": _classes(answers.entities),
        "confusion": _confusion(answers, labels),
        "calibration": _calibration(answers),
        "slices": [slice_by(table, column, answers.measure) for column in slices],
        "abstained": _abstained(answers),
        "worst": worst(answers, split, table),
        "points": _points(answers) if answers.measure.name == "mae" else None,
    }


def interval_of(
    metric: str,
    answers: Answers,
    objective: Objective,
    split: Split,
    tokens: Sequence[Tokens],
    logits: Sequence[Logits],
) -> Interval | None:
    """The metric's 95 % confidence interval; `logits` are from `counted_logits`. Token and span tasks get None."""
    if metric == answers.measure.name:
        return metric_and_interval(answers.measure, np.arange(len(split)))[1]
    if not isinstance(split.gold, np.ndarray):
        return None
    if metric == "accuracy":  # in a multi_label task: all labels of a text must be right
        right = round(objective.score(split, logits)[metric] * len(split))
        return wilson(right, len(split))
    stacked = np.stack(logits)
    return bootstrap(len(split), lambda rows: objective.score(split.take(rows), list(stacked[rows]))[metric])


def worst(answers: Answers, split: Split, table: Table, limit: int = MAX_WORST) -> list[dict[str, Any]]:
    """The rows with the highest losses: place, texts, right answer, delta's answer."""
    order = np.argsort(-np.where(np.isnan(answers.loss), -np.inf, answers.loss), kind="stable")[:limit].tolist()
    records = []
    for row in order:
        facts = {
            "place": table.place(row) if table.rows else {},
            **{name: printable(half, MAX_TEXT) for name, half in named_halves(split.texts[row]).items()},
            **_both(answers, split, row),
            "score": plain(answers.score[row]),
            "loss": plain(answers.loss[row]),
        }
        records.append(facts)
    return [record for record in records if record["loss"] is not None]


def _both(answers: Answers, split: Split, row: int) -> dict[str, Any]:
    gold, answer = answers.gold[row], answers.answer[row]
    if not split.words:
        return {"gold": gold, "answer": answer}
    text = str(split.texts[row])
    wrong = [
        {"word": printable(text[start:end]), "gold": right, "answer": tag}
        for (start, end), right, tag in zip(split.words[row], gold, answer, strict=True)
        if right != tag
    ]
    return {"words": wrong[:MAX_WORDS], "wrong": len(wrong)}


def _classes(counts: Counts | None) -> dict[str, Any] | None:
    if counts is None:
        return None
    facts = sorted(counts.facts(), key=lambda entry: -entry["support"])
    return {"shown": facts[:MAX_CLASSES], "left_out": max(0, len(facts) - MAX_CLASSES)}


def _confusion(answers: Answers, labels: Sequence[str]) -> dict[str, Any] | None:
    if answers.class_pairs is None:
        return None
    gold, answered = answers.class_pairs
    pairs = [
        {"gold": labels[right], "answer": labels[wrong], "count": count}
        for right, wrong, count in top_pairs(gold, answered)
    ]
    if len(labels) > MATRIX_LABELS:
        return {"pairs": pairs, "matrix": None}
    return {"pairs": pairs, "matrix": confusion_matrix(gold, answered, len(labels)).tolist(), "labels": list(labels)}


def _calibration(answers: Answers) -> dict[str, Any] | None:
    if answers.reliability is None or not len(answers.reliability.confidence):
        return None
    description, confidence, right = answers.reliability
    return {
        "of": description,
        "answers": len(confidence),
        "ece": expected_calibration_error(confidence, right),
        "bins": BINS,
        "confidence": float(confidence.mean()),
        "right": float(right.mean()),
        "curve": calibration_curve(confidence, right),
    }


def _abstained(answers: Answers) -> dict[str, Any] | None:
    if answers.abstained is None:
        return None
    score = answers.measure.over(np.flatnonzero(~answers.abstained))  # NaN of no row
    return {"rows": int(answers.abstained.sum()), "metric": answers.measure.name, "score_of_the_rest": plain(score)}


def _points(answers: Answers) -> list[list[float]]:
    rows = np.unique(np.linspace(0, len(answers.gold) - 1, min(MAX_POINTS, len(answers.gold))).astype(np.int64))
    return [[float(answers.gold[row]), float(answers.answer[row])] for row in rows.tolist()]
