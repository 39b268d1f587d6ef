"""Draws scores of methods as dots with deviations, and generalization gaps as bars; a panel for each column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from onebert_training.report.style import COLORS, Picture, save, short
from onebert_training.report.tables import Column, Results, Trial, format_number, headings

Numbers = tuple[float, float | None]  # mean and deviation
Span = tuple[float, float]


@dataclass(frozen=True)
class Shown:
    """One method in one panel."""

    line: int
    mean: float
    spread: float | None
    best: bool

    @property
    def low(self) -> float:
        """The mean minus the deviation."""
        return self.mean - (self.spread or 0)

    @property
    def high(self) -> float:
        """The mean plus the deviation."""
        return self.mean + (self.spread or 0)


Draw = Callable[[Axes, Sequence[Shown]], Span]  # draws; returns the axis's lower end and the end of what is drawn


def draw_scores(results: Results) -> list[Picture]:
    """Draws means and deviations of every method (What Parameters to Freeze?, Figures 1, 5 and 7)."""

    def numbers(trial: Trial) -> Numbers:
        return trial.mean, trial.spread

    figure = _panels(results, numbers, "", draw_dots)
    caption = (
        "Mean over the seeds as a dot, with the standard deviation, at the settings that are best on validation; "
        "the best method of each panel is orange. Axes do not begin at 0."
    )
    return [save(figure, "scores", results.base, "Scores by method", caption)] if figure else []


def draw_gaps(results: Results) -> list[Picture]:
    """Draws the metric on training rows minus that on the measured split (BitFit, section 4), if records have both."""

    def numbers(trial: Trial) -> Numbers | None:
        gaps = trial.gaps
        return (fmean(gaps), stdev(gaps) if len(gaps) > 1 else None) if gaps else None

    figure = _panels(results, numbers, "gap, ", draw_bars)
    caption = "How much better the training rows score than the measured split; mean and standard deviation."
    return [save(figure, "gaps", results.base, "Generalization gap", caption)] if figure else []


def _panels(
    results: Results,
    numbers: Callable[[Trial], Numbers | None],
    label: str,
    draw: Callable[[Axes, Sequence[Shown]], Span],
) -> Figure | None:
    """A figure of one panel for each column and one line for each method; None if there is nothing to show."""
    found = {key: value for key, trial in results.best.items() if (value := numbers(trial)) is not None}
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
        winners = results.winners(column) if draw is draw_dots else set()
        shown = [
            Shown(line, *found[method, column], method in winners)
            for line, method in enumerate(methods)
            if (method, column) in found
        ]
        _finish(ax, column, shown, draw(ax, shown))
        ax.set_yticks(range(len(methods)), [short(method) for method in methods])
        ax.set_title("\n".join(map(short, title)))
        ax.set_xlabel(f"{label}{column.unit}")
    axes[0].set_ylim(len(methods) - 0.4, -0.6)
    return figure


def _any(found: Mapping[tuple[str, Column], object], column: Column) -> bool:
    return any(key[1] == column for key in found)


def draw_dots(ax: Axes, shown: Sequence[Shown]) -> Span:
    """Draws dots with deviations; unlike bars, they allow an axis that does not begin at zero."""
    for one in shown:
        color = COLORS[5] if one.best else COLORS[0]
        ax.errorbar(one.mean, one.line, xerr=one.spread, fmt="o", color=color, lw=1.2, capsize=2, ms=5)
    low, high = min(one.low for one in shown), max(one.high for one in shown)
    room = 0.08 * (high - low) or 0.02 * abs(high) or 1.0
    return low - room, high + room


def draw_bars(ax: Axes, shown: Sequence[Shown]) -> Span:
    """Draws bars, which begin at zero."""
    for one in shown:
        ax.barh(one.line, one.mean, height=0.72, color=COLORS[0], xerr=one.spread, error_kw={"lw": 1, "capsize": 2})
    low, high = min(0.0, *(one.low for one in shown)), max(0.0, *(one.high for one in shown))
    return low - (0.05 * (high - low) if low < 0 else 0), high


def _finish(ax: Axes, column: Column, shown: Sequence[Shown], span: Span) -> None:
    """Adds numbers beside the dots or bars, ticks and a grid."""
    low, high = span
    room = (high - low) or 1.0
    for one in shown:
        text = format_number(column, one.mean)
        text += f" ± {format_number(column, one.spread)}" if one.spread is not None else ""
        ax.text(max(one.high, low) + 0.03 * room, one.line, text, va="center", fontsize=7.5)
    right = high + 0.5 * room  # room for the numbers
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    ax.set_xticks([tick for tick in ticks if low <= tick <= right])
    ax.set_xlim(low, right)
    ax.grid(axis="x", lw=0.4, color="#dddddd")
    ax.tick_params(axis="y", length=0)
