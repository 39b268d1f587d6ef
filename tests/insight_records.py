"""Evaluated deltas of a tiny random base: every task type, labels and texts that a page must show as they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bases import far_delta, manifest_for
from onebert_encoder.base.base import Base
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import parse_manifest
from onebert_store.tables.spans import spans_of
from onebert_store.tables.table import Table
from onebert_training.data.dataset import Labeled
from onebert_training.data.examples import Split
from onebert_training.insight.evaluated import evaluate_delta
from onebert_training.report.document import provenance
from onebert_training.report.evaluation import render_evaluation

HOSTILE = '<script>alert("$x^")</script> & | `a` 😀'
WORDS = ("parcel", "order", "invoice", "password", "screen", "refund", "late", "good", "bad", HOSTILE)


def delta_of(base: Base, task_type: str, labels: Sequence[str], decision: Any = None, method: str = "bitfit") -> Delta:
    pooling = "none" if task_type in ("token", "span") else "mean"
    more = {"task_type": task_type, "labels": list(labels), "pooling": pooling, "method": method}
    if decision is not None:
        more |= {"format": 2, "decision": decision}
    tensors = far_delta(base.spec, "bitfit", pooling, len(labels), seed=1)
    return Delta(parse_manifest({**manifest_for(base.spec), **more}), tensors)


def rows_of(task_type: str, labels: int, count: int) -> Split:
    """Random rows of a task type."""
    draw = np.random.default_rng(3)
    words = [tuple(draw.choice(WORDS, draw.integers(3, 14)).tolist()) for _ in range(count)]
    texts = tuple(map(" ".join, words))
    if task_type == "token":
        tags = tuple(tuple(draw.integers(0, labels, len(row)).tolist()) for row in words)
        return Split(texts, tags, tuple(map(spans_of, words)))
    if task_type == "span":
        return Split(tuple(("what?", text) for text in texts), tuple(((0, row[0]),) for row in words))
    gold: Any = draw.integers(0, labels, count)
    if task_type == "multi_label":
        gold = (draw.random((count, labels)) < 0.3).astype(np.float32)
    if task_type == "regression":
        gold = draw.normal(0, 1, count).astype(np.float32)
    return Split(texts, gold)


def labeled(task_type: str, labels: int, count: int = 150) -> Labeled:
    """Rows with two columns to slice by."""
    draw = np.random.default_rng(4)
    split = rows_of(task_type, labels, count)
    channel = draw.choice(["web", "mail", HOSTILE], count, p=[0.6, 0.3, 0.1]).tolist()
    columns = {"text": list(split.texts), "channel": channel, "age": draw.integers(0, 90, count).tolist()}
    return Labeled("test", split, None, "tickets of may", Table(columns, "rows.csv"))


def page_of(base: Base, folder: Path, task_type: str, labels: Sequence[str]) -> Path:
    """The page of a delta that answers as it likes."""
    delta = delta_of(base, task_type, labels, method=HOSTILE)
    scores, _ = evaluate_delta(base, delta, labeled(task_type, len(labels)), ["channel", "age"])
    record = {**scores, "file": str(folder / "tickets.safetensors"), **provenance()}
    page = folder / f"{task_type}-{len(labels)}.html"
    page.write_text(render_evaluation(record, folder), encoding="utf-8")
    return page
