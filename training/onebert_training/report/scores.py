"""Draws scores of methods, and generalization gaps, as dots with deviations; and scores against the training rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10
from statistics import fmean, stdev

from onebert_training.report.document import short, unit
from onebert_training.report.plots import Axis, Panel, Picture, axis_for, color, dot, fill, line, make, path, text
from onebert_training.report.tables import Column, Results, Trial, format_mean, format_trial, headings

Numbers = tuple[float, float | None]  # mean and deviation

_LINE, _FIRST = 20, 50  # the distance of rows, and the place of the first
_TOP, _BOTTOM, _LEFT, _RIGHT = 46, 210, 40, 330  # of the plot over sizes
_LETTER = 6.4  # approximate width of a letter


@dataclass(frozen=True)
class Dot:
    """One line of a panel: `value` with `spread` on both sides, `says` as its text; `best` is highlighted."""

    name: str
    value: float
    spread: float | None
    says: str
    best: bool = False


def draw_scores(results: Results) -> list[Picture]:
    """Draws means and deviations of every method (What Parameters to Freeze?, Figures 1, 5 and 7)."""
    panels = _panels(results, lambda trial: (trial.mean, trial.spread))
    caption = (
        "Mean over the seeds as a dot, with the standard deviation, at the settings that are best on validation; "
        "the best method of each panel stands out. Axes do not begin at 0."
    )
    return [make("scores", results.base, "Scores by method", caption, panels)] if panels else []


def draw_gaps(results: Results) -> list[Picture]:
    """Draws the metric on training rows minus that on the measured split (BitFit, section 4), if records have both."""

    def numbers(trial: Trial) -> Numbers | None:
        gaps = trial.gaps
        return (fmean(gaps), stdev(gaps) if len(gaps) > 1 else None) if gaps else None

    panels = _panels(results, numbers, gap=True)
    caption = "How much better the training rows score than the measured split; mean and standard deviation."
    return [make("gaps", results.base, "Generalization gap", caption, panels)] if panels else []


def _panels(results: Results, numbers: Callable[[Trial], Numbers | None], gap: bool = False) -> list[Panel]:
    panels = []
    for column, (title, under) in zip(results.columns, headings(results), strict=True):
        winners = set() if gap else results.winners(column)
        rows = [
            Dot(method, *mean_and_spread, format_mean(column, *mean_and_spread), method in winners)
            for method in results.methods
            if (trial := results.best.get((method, column))) and (mean_and_spread := numbers(trial))
        ]
        if rows:
            panels.append(dots(rows, title, f"{'gap, ' * gap}{under}", zero=gap))
    return panels


def dots(rows: Sequence[Dot], title: str, under: str, zero: bool = False) -> Panel:
    """A line for each row; with `zero` the axis includes 0."""
    names = [_cut(row.name) for row in rows]
    x_start = 12 + _LETTER * max(map(len, names))
    right = 328 - _LETTER * max(len(row.says) for row in rows)
    ends = [row.value + side * (row.spread or 0) for row in rows for side in (-1, 1)]
    x, bottom = axis_for(ends, x_start, right, zero), _FIRST + _LINE * len(rows) - 6
    parts = [text(0, 13, short(title), kind="head"), text(0, 28, under)]
    for tick in x.ticks(4):
        parts.append(line(x.at(tick), 38, x.at(tick), bottom, "grid"))
        parts.append(text(x.at(tick), bottom + 14, f"{tick:g}", "middle"))
    if zero:
        parts.append(line(x.at(0), 38, x.at(0), bottom, "axis"))
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        y, kind = _FIRST + _LINE * number, "best" if row.best else "ink"
        marks = dot(x.at(row.value), y, f"{row.name}: {row.says}")
        if row.spread is not None:
            marks = line(x.at(row.value - row.spread), y, x.at(row.value + row.spread), y, "whisker") + marks
        parts.append(marks if row.best else f'<g class="other">{marks}</g>')
        parts += [text(0, y + 4, name, kind=kind), text(340, y + 4, row.says, "end", kind)]
    shown = "; ".join(f"{row.name} {row.says}" for row in rows)
    return Panel(340, bottom + 20, f"{title}, {under}: {shown}", "".join(parts))


def _cut(name: str) -> str:
    name = short(name)
    return name if len(name) <= 22 else f"{name[:13]}…{name[-8:]}"


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
    trials = {method: tried for method, tried in trials.items() if tried}
    ends = [t.mean + side * (t.spread or 0) for tried in trials.values() for t in tried for side in (-1, 1)]
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
    for number, (method, tried) in enumerate(trials.items()):
        # Shifts each method a little, so that deviations at one size do not overlap.
        shift = 16 * ((number + 0.5) / len(trials) - 0.5)
        points = [(x.at(log10(t.column.train_rows)) + shift, y.at(t.mean)) for t in tried]
        parts.append(path(points, "curve", color(number)))
        for (at, height), trial in zip(points, tried, strict=True):
            if trial.spread:
                low, high = y.at(trial.mean - trial.spread), y.at(trial.mean + trial.spread)
                parts.append(path([(at, low), (at, high)], "curve", color(number)))
            says = f"{method}, {trial.column.train_rows:,} rows: {format_trial(trial)}"
            parts.append(dot(at, height, says, "series", 3.5, fill(number)))
        row, side = divmod(number, 2)
        place = _BOTTOM + 38 + 17 * row
        parts.append(path([(165 * side, place - 4), (165 * side + 16, place - 4)], "curve", color(number)))
        parts.append(text(165 * side + 22, place, short(method)[:22], kind="ink"))
    shown = "; ".join(f"{method} {', '.join(map(format_trial, tried))}" for method, tried in trials.items())
    height = _BOTTOM + 38 + 17 * ((len(trials) + 1) // 2)
    return Panel(340, height, f"{columns[0].data}, {under}, {sizes}: {shown}", "".join(parts))
