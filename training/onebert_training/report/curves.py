"""Draws losses and the deciding metric of every seed in color, their median in black, and the evaluation kept."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from onebert_training.report.records import Evaluation, Record
from onebert_training.report.style import Picture, save, short
from onebert_training.report.tables import Column, Results, Trial, headings, scaled


def draw_curves(results: Results) -> list[Picture]:
    """Draws losses and metric over epochs (What Parameters to Freeze?, Figures 2, 9, 10), a picture for each column."""
    pictures = []
    for column, title in zip(results.columns, headings(results), strict=True):
        trials = {m: c for m in results.methods if (c := results.best.get((m, column))) and _with_history(c)}
        if trials:
            figure = _panels(column, trials)
            caption = (
                "Every seed in color, the median of three or more in black, at the settings that are best on "
                "validation; a dot is the evaluation that was kept."
            )
            name = f"{column.data} ({title[1]})"
            pictures.append(save(figure, f"curves-{name}", results.base, f"Training on {name}", caption))
    return pictures


def _with_history(trial: Trial) -> list[Record]:
    return [run for run in trial.runs if run.history]


def _panels(column: Column, trials: Mapping[str, Trial]) -> Figure:
    traced: list[tuple[str, Callable[[Evaluation], float | None]]] = [
        ("training loss", lambda evaluation: evaluation.loss),
        ("validation loss", lambda evaluation: evaluation.validation_loss),
        (f"validation {column.unit}", lambda evaluation: _validation(column, evaluation)),
    ]
    figure = Figure((10.5, 1.0 + 1.85 * len(trials)), layout=ConstrainedLayoutEngine(h_pad=0.11))
    axes = figure.subplots(len(trials), 3, sharex=True, sharey="col", squeeze=False)
    for row, (method, trial) in zip(axes, trials.items(), strict=True):
        for ax, (_, value) in zip(row, traced, strict=True):
            runs = _with_history(trial)
            traces = [[(e, v) for e in run.history if (v := value(e)) is not None] for run in runs]
            draw_seeds(ax, traces, [run.best_step for run in runs])
        title = f"{short(method)}   learning rate {trial.runs[0].learning_rate:g}"
        label = row[0].text(0, 1.04, title, transform=row[0].transAxes, fontweight="bold", fontsize=8.5)
        label.set_in_layout(False)  # it may reach into the next panel's column, which is empty there
    for ax, (label, _) in zip(axes[0], traced, strict=True):
        ax.set_title(label, pad=18)
    for i, ax in enumerate(axes[-1]):
        ax.set_xlabel("epoch")
        _limit(list(axes[:, i]), losses=i < 2)
    return figure


def _validation(column: Column, evaluation: Evaluation) -> float | None:
    score = evaluation.validation.get(column.metric)
    return None if score is None else scaled(column, score)


def draw_seeds(ax: Axes, traces: Sequence[Sequence[tuple[Evaluation, float]]], kept: Sequence[int | None] = ()) -> None:
    """Draws a thin line for each seed and, with three or more seeds, their median at each step.

    Args:
        ax: the axes to draw on.
        traces: evaluations and values of every seed.
        kept: for every seed, the step of the evaluation that was kept.
    """
    colors = mpl.colormaps["viridis"](np.linspace(0.05, 0.75, len(traces)))
    at: dict[int, list[tuple[float, float]]] = {}
    for color, values, step in zip(colors, traces, kept or [None] * len(traces), strict=True):
        ax.plot([e.epoch for e, _ in values], [v for _, v in values], color=color, lw=0.9, alpha=0.8)
        dots = [(evaluation.epoch, value) for evaluation, value in values if evaluation.step == step]
        if dots:
            ax.plot(*zip(*dots, strict=True), "o", color=color, ms=4)
        for evaluation, value in values:
            at.setdefault(evaluation.step, []).append((evaluation.epoch, value))
    # The median ends where half of the seeds have stopped early, since the rest are not representative.
    middle = [
        (median(p[0] for p in at[s]), median(p[1] for p in at[s])) for s in sorted(at) if 2 * len(at[s]) > len(traces)
    ]
    if len(traces) > 2 and middle:
        ax.plot(*zip(*middle, strict=True), color="black", lw=1.5)
    ax.grid(lw=0.4, color="#dddddd")


def _limit(axes: Sequence[Axes], losses: bool) -> None:
    """Gives a column of panels one scale, which a few outliers do not stretch."""
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
