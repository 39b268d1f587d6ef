"""The page of one delta on labeled rows, from the record that `onebert evaluate --json` prints."""

import json
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from onebert_training.insight.decision_rules import REFUSED
from onebert_training.report import plots
from onebert_training.report.document import Scale, rendered, said, scale_of
from onebert_training.tasks.metrics import LOWER_IS_BETTER

FIRST = 20  # classes visible without unfolding

Record = Mapping[str, Any]


def render_evaluation(record: Record, folder: Path) -> str:
    """One self-contained HTML page; `folder` is its future place, for the link to the delta file."""
    file, metric = Path(record["file"]), record["metric"]
    yardsticks = [one for one in record["yardsticks"] if metric in one["metrics"]]
    numbers = [record["metrics"][metric], *(record["interval"] or ()), *(one["metrics"][metric] for one in yardsticks)]
    return rendered(
        "evaluation.html",
        f"{file.stem}: {metric} on {record['data']['name']}",
        record=record,
        name=file.stem,
        file=file.name,
        link=quote(os.path.relpath(file, folder)),
        raw=b64encode(json.dumps(record, ensure_ascii=False, allow_nan=False).encode()).decode(),
        yardsticks=yardsticks,
        scale=scale_of(numbers, metric not in LOWER_IS_BETTER),
        shares=Scale(0, 1),
        FIRST=FIRST,
        REFUSED=REFUSED,
        LOWER_IS_BETTER=LOWER_IS_BETTER,
        by=lambda metric: " (Wilson)" if metric == "accuracy" else " (bootstrap over rows)",
        scatter=_scatter,
        calibration=_calibration,
        scale_of_slice=_scale_of_slice,
        texts_of=_texts_of,
        is_right=_is_right,
    )


def _scatter(points: Sequence[Sequence[float]]) -> Markup:
    return _chart(plots.scatter(points, f"{len(points)} rows: what is answered against what is right"))


def _calibration(found: Record, confidence: str, right: str) -> Markup:
    says = f"Calibration curve of {found['answers']:,} answers: mean confidence {confidence} %, right {right} %, "
    return _chart(plots.calibration(found["curve"], f"{says}ECE {said('', found['ece'])} %"))


def _chart(panel: plots.Panel) -> Markup:
    return Markup(panel.svg('class="chart"'))  # noqa: S704 - a panel escapes its words


def _scale_of_slice(found: Record) -> Scale:
    numbers = [number for one in found["values"] for number in (one["low"], one["score"], one["high"])]
    return scale_of(numbers, found["metric"] not in LOWER_IS_BETTER)


def _texts_of(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [f"{one:.4g}" if isinstance(one, float) else str(one) for one in values] or ["none"]


def _is_right(row: Record) -> bool:
    # A span task has several acceptable texts.
    return row["answer"] == row["gold"] or (isinstance(row["gold"], list) and row["answer"] in row["gold"])
