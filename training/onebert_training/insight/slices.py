"""Slices a metric by the values of a column."""

from typing import Any

from onebert_store.tables.slices import cells_of, group
from onebert_store.tables.table import Table
from onebert_training.insight.answers import Measure
from onebert_training.insight.intervals import Indices, Interval, bootstrap, plain, wilson


def metric_and_interval(measure: Measure, rows: Indices) -> tuple[float, Interval]:
    """The metric on some rows with its interval: Wilson's for accuracy, otherwise the bootstrap's."""
    score = measure.over(rows)
    if measure.name == "accuracy":
        return score, wilson(measure.top[rows].sum(), len(rows))
    return score, bootstrap(len(rows), lambda drawn: measure.over(rows[drawn]))


def slice_by(table: Table, column: str, measure: Measure) -> dict[str, Any]:
    """The metric by the values of a column as JSON, with numbers in bins of similar size; raises as `cells_of`."""
    values = []
    for value, rows in group(cells_of(table, column)).items():
        score, ends = metric_and_interval(measure, rows)
        numbers = {"score": plain(score), "low": plain(ends.low), "high": plain(ends.high)}
        values.append({"value": value, "rows": len(rows), **numbers})
    return {"column": column, "metric": measure.name, "score": plain(measure.over()), "values": values}
