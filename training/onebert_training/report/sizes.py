"""Draws scores against the number of training rows, for data sets that were used in several sizes."""

from collections.abc import Sequence
from itertools import cycle
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from onebert_training.report.style import COLORS, MARKERS, STYLES, Picture, save, short
from onebert_training.report.tables import Column, Results


def draw_sizes(results: Results) -> list[Picture]:
    """Draws means and deviations over sizes (What Parameters to Freeze?, Figure 3; BitFit, Figure 2)."""
    groups: dict[tuple[str, str, str], list[Column]] = {}
    for column in results.columns:
        if column.train_rows:
            groups.setdefault((column.data, column.metric, column.split), []).append(column)
    several = {key: columns for key, columns in groups.items() if len(columns) > 1}
    if not several:
        return []
    across = min(2, len(several))
    down = ceil(len(several) / across)
    height = max(3.4, 0.24 * len(results.methods))
    figure = Figure((4.3 * across + 2.4, height * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    handles: dict[str, Any] = {}
    for ax, columns in zip(axes, several.values(), strict=False):
        handles |= _panel(ax, results, columns)
    for ax in axes[len(several) :]:
        ax.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
    caption = "Mean over the seeds with the standard deviation, at the settings that are best on validation."
    return [save(figure, "sizes", results.base, "Score against training rows", caption)]


def _panel(ax: Axes, results: Results, columns: Sequence[Column]) -> dict[str, Any]:
    rows = sorted({column.train_rows for column in columns})
    handles: dict[str, Any] = {}
    looks = zip(cycle(COLORS), cycle(MARKERS), results.methods, strict=False)
    for line, (color, marker, method) in enumerate(looks):
        trials = [trial for column in columns if (trial := results.best.get((method, column)))]
        if not trials:
            continue
        # Methods are shifted by up to 4 % of the axis, so that error bars at one size do not cover each other.
        shift = (rows[-1] / rows[0]) ** (0.04 * ((line + 0.5) / len(results.methods) - 0.5))
        x = [trial.column.train_rows * shift for trial in trials]
        handles[short(method)] = ax.errorbar(
            x,
            [trial.mean for trial in trials],
            [trial.spread or 0 for trial in trials],
            ls=STYLES[line // len(COLORS) % len(STYLES)],
            lw=1.3,
            color=color,
            marker=marker,
            ms=4,
            elinewidth=0.8,
            capsize=2,
        )
    ax.set_xscale("log")
    ax.set_xticks(rows, [f"{count:,}" for count in rows], rotation=35, ha="right", rotation_mode="anchor")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_title(short(columns[0].data))
    ax.set_xlabel("training rows")
    ax.set_ylabel(f"{columns[0].unit}, {columns[0].split}")
    ax.grid(lw=0.4, color="#dddddd")
    return handles
