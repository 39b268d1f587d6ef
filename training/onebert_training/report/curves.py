"""Losses and the deciding metric of every round in color, their median in black."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from onebert_training.report.records import Evaluation, Record
from onebert_training.report.style import Picture, save, short
from onebert_training.report.tables import Cell, Column, Results, headings, scaled


def draw_curves(results: Results) -> list[Picture]:
    """Losses and metric over the epochs (What Parameters to Freeze?, Figures 2, 9, 10), a picture for each column."""
    pictures = []
    for column, title in zip(results.columns, headings(results), strict=True):
        cells = {m: c for m in results.methods if (c := results.best.get((m, column))) and _with_history(c)}
        if cells:
            figure = _panels(column, cells)
            caption = "Every round (seed) in color, their median in black, at the settings that are best on validation."
            name = f"{column.data} ({title[1]})"
            pictures.append(save(figure, f"curves-{name}", results.base, f"Training on {name}", caption))
    return pictures


def _with_history(cell: Cell) -> list[Record]:
    return [run for run in cell.runs if run.history]


def _panels(column: Column, cells: Mapping[str, Cell]) -> Figure:
    traced: list[tuple[str, Callable[[Evaluation], float | None]]] = [
        ("training loss", lambda evaluation: evaluation.loss),
        ("validation loss", lambda evaluation: evaluation.validation_loss),
        (f"validation {column.unit}", lambda evaluation: _validation(column, evaluation)),
    ]
    figure = Figure((10.5, 1.0 + 1.85 * len(cells)), layout=ConstrainedLayoutEngine(h_pad=0.11))
    axes = figure.subplots(len(cells), 3, sharex=True, sharey="col", squeeze=False)
    for row, (method, cell) in zip(axes, cells.items(), strict=True):
        for ax, (_, value) in zip(row, traced, strict=True):
            draw_rounds(ax, [[(e, v) for e in r.history if (v := value(e)) is not None] for r in _with_history(cell)])
        title = f"{short(method)}   learning rate {cell.runs[0].learning_rate:g}"
        label = row[0].text(0, 1.04, title, transform=row[0].transAxes, fontweight="bold", fontsize=8.5)
        label.set_in_layout(False)  # it may reach into the next panel's column, which is empty there
    for ax, (label, _) in zip(axes[0], traced, strict=True):
        ax.set_title(label, pad=18)
    for ax, place in zip(axes[-1], range(3), strict=True):
        ax.set_xlabel("epoch" if place else "epoch (colors: rounds, black: their median)")
        _limit(list(axes[:, place]), losses=place < 2)
    return figure


def _validation(column: Column, evaluation: Evaluation) -> float | None:
    score = evaluation.validation.get(column.metric)
    return None if score is None else scaled(column, score)


def draw_rounds(ax: Axes, rounds: Sequence[Sequence[tuple[Evaluation, float]]]) -> None:
    """One thin line for each round, and over them their median, step by step."""
    colors = mpl.colormaps["viridis"](np.linspace(0.05, 0.75, len(rounds)))
    at: dict[int, list[tuple[float, float]]] = {}
    for color, values in zip(colors, rounds, strict=True):
        ax.plot([e.epoch for e, _ in values], [v for _, v in values], color=color, lw=0.9, alpha=0.8)
        for evaluation, value in values:
            at.setdefault(evaluation.step, []).append((evaluation.epoch, value))
    # Where rounds have stopped early, the few that go on are no median of all.
    middle = [
        (median(p[0] for p in at[s]), median(p[1] for p in at[s])) for s in sorted(at) if 2 * len(at[s]) > len(rounds)
    ]
    if len(rounds) > 1 and middle:
        ax.plot(*zip(*middle, strict=True), color="black", lw=1.5)
    ax.grid(lw=0.4, color="#dddddd")


def _limit(axes: Sequence[Axes], losses: bool) -> None:
    """One scale for a column of panels, which a few far-off values do not stretch."""
    values = np.concatenate(
        [np.asarray(line.get_ydata(), dtype=float) for ax in axes for line in ax.lines] or [np.zeros(1)]
    )
    if not len(values):
        return
    low, high = values.min(), values.max()
    if losses:
        high = min(high, low + 2 * (np.quantile(values, 0.95) - low)) or high
    room = 0.08 * (high - low) or 0.1
    axes[0].set_ylim(max(0.0, low - room) if low >= 0 else low - room, high + room)
