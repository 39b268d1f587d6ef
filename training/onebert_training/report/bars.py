"""Bars with deviations: scores and generalization gaps of every method, a panel for each column."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log10
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from onebert_training.report.style import COLORS, Picture, save, short
from onebert_training.report.tables import Cell, Column, Results, format_number, headings


def draw_scores(results: Results) -> list[Picture]:
    """Means and deviations of every method (What Parameters to Freeze?, Figures 1, 5 and 7)."""

    def numbers(cell: Cell) -> tuple[float, float | None]:
        return cell.mean, cell.spread

    figure = _bars(results, numbers, "", from_zero=False)
    caption = (
        "Mean over the seeds with the standard deviation, at the settings that are best on validation; "
        "the best method of each panel is orange."
    )
    return [save(figure, "scores", results.base, "Scores by method", caption)] if figure else []


def draw_gaps(results: Results) -> list[Picture]:
    """Training minus measured metric (BitFit, section 4), where records have both."""

    def numbers(cell: Cell) -> tuple[float, float | None] | None:
        gaps = cell.gaps
        return (fmean(gaps), stdev(gaps) if len(gaps) > 1 else None) if gaps else None

    figure = _bars(results, numbers, "gap, ", from_zero=True)
    caption = "How much better the training rows score than the measured split; mean and standard deviation."
    return [save(figure, "gaps", results.base, "Generalization gap", caption)] if figure else []


def _bars(
    results: Results,
    numbers: Callable[[Cell], tuple[float, float | None] | None],
    label: str,
    from_zero: bool,
) -> Figure | None:
    """One panel a column, one bar a method; None where there is nothing to show."""
    found = {key: value for key, cell in results.best.items() if (value := numbers(cell)) is not None}
    panels = [(c, title) for c, title in zip(results.columns, headings(results), strict=True) if _any(found, c)]
    methods = [method for method in results.methods if any(key[0] == method for key in found)]
    if not panels:
        return None
    across = min(3, len(panels))
    down = ceil(len(panels) / across)
    size = (2.6 + 2.9 * across, down * (1.1 + 0.27 * len(methods)))
    figure = Figure(size, layout="constrained")
    axes = list(figure.subplots(down, across, sharey=True, squeeze=False).flat)
    for ax in axes:
        ax.set_visible(False)
    for (column, title), ax in zip(panels, axes, strict=False):
        ax.set_visible(True)
        values = [found.get((method, column)) for method in methods]
        winners = set() if from_zero else results.winners(column)
        _draw_bars(ax, column, values, [method in winners for method in methods], from_zero)
        ax.set_yticks(range(len(methods)), [short(method) for method in methods])
        ax.set_title("\n".join(map(short, title)))
        start = ax.get_xlim()[0]
        ax.set_xlabel(f"{label}{column.unit}" + (f" (axis begins at {start:g})" if start > 0 else ""))
    axes[0].set_ylim(len(methods) - 0.4, -0.6)
    return figure


def _any(found: Mapping[tuple[str, Column], object], column: Column) -> bool:
    return any(key[1] == column for key in found)


def _draw_bars(
    ax: Axes, column: Column, values: Sequence[tuple[float, float | None] | None], best: Sequence[bool], from_zero: bool
) -> None:
    shown = [(place, *value) for place, value in enumerate(values) if value is not None]
    low = min(0.0, *(mean - (spread or 0) for _, mean, spread in shown))
    if not from_zero and low == 0:
        low = _start([mean - (spread or 0) for _, mean, spread in shown], max(mean for _, mean, _ in shown))
    high = max(0.0, *(mean + (spread or 0) for _, mean, spread in shown))
    room = (high - low) or 1.0
    for place, mean, spread in shown:
        color = COLORS[5] if best[place] else COLORS[0]
        left = low if low > 0 else 0.0
        ax.barh(place, mean - left, left=left, height=0.72, color=color, xerr=spread, error_kw={"lw": 1, "capsize": 2})
        text = format_number(column, mean) + (f" ± {format_number(column, spread)}" if spread is not None else "")
        ax.text(max(mean, left) + (spread or 0) + 0.03 * room, place, text, va="center", fontsize=7.5)
    left, right = low - (0.05 * room if low < 0 else 0), high + 0.5 * room  # room for the numbers
    ax.set_xticks(
        [tick for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high) if left <= tick <= right]
    )
    ax.set_xlim(left, right)
    ax.grid(axis="x", lw=0.4, color="#dddddd")
    ax.tick_params(axis="y", length=0)


def _start(lowest: Sequence[float], highest: float) -> float:
    """Where the axis of positive scores begins: a round number that leaves the smallest bar a fifth of the width."""
    bottom = min(lowest)
    start = bottom - max(0.25 * (highest - bottom), 0.02 * highest)
    step = 10.0 ** floor(log10(highest)) / 2 if highest > 0 else 1.0
    return max(0.0, floor(start / step) * step)
