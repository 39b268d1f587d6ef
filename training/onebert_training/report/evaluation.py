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
from onebert_training.report.document import Scale, format_metric, rendered, scale_of
from onebert_training.tasks.metrics import LOWER_IS_BETTER

FIRST = 20  # classes visible without unfolding

Record = Mapping[str, Any]


def render_evaluation(record: Record, folder: Path) -> str:
    """One self-contained HTML page; `folder` is its future place, for the link to the delta file."""
    file, metric = Path(record["file"]), record["metric"]
    baselines = [baseline for baseline in record["yardsticks"] if metric in baseline["metrics"]]
    numbers = [
        record["metrics"][metric],
        *(record["interval"] or ()),
        *(baseline["metrics"][metric] for baseline in baselines),
    ]
    return rendered(
        "evaluation.html",
        f"{file.stem}: {metric} on {record['data']['name']}",
        record=record,
        name=file.stem,
        file=file.name,
        link=quote(os.path.relpath(file, folder)),
        raw=b64encode(json.dumps(record, ensure_ascii=False, allow_nan=False).encode()).decode(),
        baselines=baselines,
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


def _calibration(curve: Record, confidence: str, right: str) -> Markup:
    says = f"Calibration curve of {curve['answers']:,} answers: mean confidence {confidence} %, right {right} %, "
    return _chart(plots.calibration(curve["curve"], f"{says}ECE {format_metric('', curve['ece'])} %"))


def _chart(panel: plots.Panel) -> Markup:
    return Markup(panel.svg('class="chart"'))  # noqa: S704 - a panel escapes its words


def _scale_of_slice(by_value: Record) -> Scale:
    numbers = [number for group in by_value["values"] for number in (group["low"], group["score"], group["high"])]
    return scale_of(numbers, by_value["metric"] not in LOWER_IS_BETTER)


def _texts_of(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [f"{item:.4g}" if isinstance(item, float) else str(item) for item in values] or ["none"]


def _is_right(row: Record) -> bool:
    # A span task has several acceptable texts.
    return row["answer"] == row["gold"] or (isinstance(row["gold"], list) and row["answer"] in row["gold"])
