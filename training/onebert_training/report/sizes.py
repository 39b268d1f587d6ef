"""Score against the number of training rows, where a data set comes in several sizes."""

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
    """Means and deviations over sizes (What Parameters to Freeze?, Figure 3; BitFit, Figure 2)."""
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
    for place, (color, marker, method) in enumerate(looks):
        cells = [cell for column in columns if (cell := results.best.get((method, column)))]
        if not cells:
            continue
        # Slightly apart, so that error bars at one size do not cover each other: all within 4 % of the axis.
        shift = (rows[-1] / rows[0]) ** (0.04 * ((place + 0.5) / len(results.methods) - 0.5))
        x = [cell.column.train_rows * shift for cell in cells]
        handles[short(method)] = ax.errorbar(
            x,
            [cell.mean for cell in cells],
            [cell.spread or 0 for cell in cells],
            ls=STYLES[place // len(COLORS) % len(STYLES)],
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
