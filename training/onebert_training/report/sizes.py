"""Draws scores against the number of training rows, for data sets used in several sizes."""

from collections.abc import Sequence
from math import log10

from onebert_training.report.document import short, unit
from onebert_training.report.plots import Axis, Panel, Picture, axis_for, color, dot, fill, line, make, path, text
from onebert_training.report.tables import Column, Results, format_trial

_TOP, _BOTTOM, _LEFT, _RIGHT = 46, 210, 40, 330


def draw_sizes(results: Results) -> list[Picture]:
    """Draws means and deviations over sizes (What Parameters to Freeze?, Figure 3; BitFit, Figure 2)."""
    groups: dict[tuple[str, str, str], list[Column]] = {}
    for column in results.columns:
        if column.train_rows:
            groups.setdefault((column.data, column.metric, column.split), []).append(column)
    panels = [_panel(results, columns) for columns in groups.values() if len(columns) > 1]
    caption = "Mean over the seeds with the standard deviation, at the settings that are best on validation."
    return [make("sizes", results.base, "Score against training rows", caption, panels)] if panels else []


def _panel(results: Results, columns: Sequence[Column]) -> Panel:
    trials = {method: [t for c in columns if (t := results.best.get((method, c)))] for method in results.methods}
    trials = {method: found for method, found in trials.items() if found}
    ends = [t.mean + side * (t.spread or 0) for found in trials.values() for t in found for side in (-1, 1)]
    y = axis_for(ends, _BOTTOM, _TOP)
    sizes = sorted({column.train_rows for column in columns})
    # Sizes grow by factors, so the axis is logarithmic.
    x = Axis(log10(sizes[0]), log10(sizes[-1]), _LEFT + 14, _RIGHT - 14)
    under = f"{unit(columns[0].metric)}, {columns[0].split}; by training rows"
    parts = [text(0, 13, short(columns[0].data), kind="head"), text(0, 28, under)]
    for tick in y.ticks():
        parts.append(line(_LEFT, y.at(tick), _RIGHT, y.at(tick), "grid"))
        parts.append(text(_LEFT - 6, y.at(tick) + 4, f"{tick:g}", "end"))
    parts += [text(x.at(log10(size)), _BOTTOM + 16, f"{size:,}", "middle") for size in sizes]
    for number, (method, found) in enumerate(trials.items()):
        # Shifts each method a little, so that deviations at one size do not overlap.
        shift = 16 * ((number + 0.5) / len(trials) - 0.5)
        points = [(x.at(log10(t.column.train_rows)) + shift, y.at(t.mean)) for t in found]
        parts.append(path(points, "curve", color(number)))
        for (at, height), trial in zip(points, found, strict=True):
            if trial.spread:
                low, high = y.at(trial.mean - trial.spread), y.at(trial.mean + trial.spread)
                parts.append(path([(at, low), (at, high)], "curve", color(number)))
            says = f"{method}, {trial.column.train_rows:,} rows: {format_trial(trial)}"
            parts.append(dot(at, height, says, "series", 3.5, fill(number)))
        row, side = divmod(number, 2)
        place = _BOTTOM + 38 + 17 * row
        parts.append(path([(165 * side, place - 4), (165 * side + 16, place - 4)], "curve", color(number)))
        parts.append(text(165 * side + 22, place, short(method)[:22], kind="ink"))
    shown = "; ".join(f"{method} {', '.join(map(format_trial, found))}" for method, found in trials.items())
    height = _BOTTOM + 38 + 17 * ((len(trials) + 1) // 2)
    return Panel(340, height, f"{columns[0].data}, {under}, {sizes}: {shown}", "".join(parts))
