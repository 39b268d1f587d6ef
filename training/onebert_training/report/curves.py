"""Draws loss and deciding metric of every seed in color, their median in ink, and the evaluation that was kept."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from statistics import median, quantiles

from onebert_training.report.document import short, unit
from onebert_training.report.plots import Axis, Panel, Picture, axis_for, color, dot, fill, frame, make, path, text
from onebert_training.report.records import Evaluation, Record
from onebert_training.report.tables import Column, Results, Trial, drawable, scaled

Trace = Sequence[tuple[Evaluation, float]]
"""Evaluations of one seed, each with the value to draw."""

_WIDTH, _HEIGHT = 300, 200


def draw_curves(results: Results) -> list[Picture]:
    """Draws losses and metric over epochs (What Parameters to Freeze?, Figures 2, 9, 10), one picture per column."""
    caption = (
        "Every seed in color, the median of three or more in ink, at the settings that are best on validation; a dot "
        "is the evaluation that was kept."
    )
    pictures = []
    for column, name, trials in drawable(results, _with_history):
        if panels := _panels(column, trials):
            pictures.append(make(f"curves-{name}", results.base, f"Training on {name}", caption, panels))
    return pictures


def _with_history(trial: Trial) -> list[Record]:
    return [run for run in trial.runs if run.history]


def _panels(column: Column, trials: Mapping[str, Trial]) -> list[Panel]:
    drawn: list[tuple[str, Callable[[Evaluation], float | None]]] = [
        ("training loss", lambda evaluation: evaluation.loss),
        ("validation loss", lambda evaluation: evaluation.validation_loss),
        (f"validation {unit(column.metric)}", lambda evaluation: _validation(column, evaluation)),
    ]
    traces = {
        (method, label): [[(e, v) for e in run.history if (v := value(e)) is not None] for run in _with_history(trial)]
        for method, trial in trials.items()
        for label, value in drawn
    }
    epochs = axis_for([e.epoch for by_seed in traces.values() for t in by_seed for e, _ in t], 40, _WIDTH - 8)
    panels = []
    heights = {
        label: _height([v for m in trials for t in traces[m, label] for _, v in t], losses=label.endswith("loss"))
        for label, _ in drawn
    }
    for method, trial in trials.items():
        for label, _ in drawn:
            best_steps = [run.best_step for run in _with_history(trial)]
            rate = trial.runs[0].learning_rate
            title = short(method) if rate is None else f"{short(method)}, lr {rate:g}"
            if any(traces[method, label]):
                panels.append(draw_seeds(traces[method, label], best_steps, epochs, heights[label], title, label))
    return panels


def _validation(column: Column, evaluation: Evaluation) -> float | None:
    score = evaluation.validation.get(column.metric)
    return None if score is None else scaled(column, score)


def _height(values: Sequence[float], losses: bool) -> Axis:
    """The shared axis of one kind of panel, clipped so that a few outliers do not stretch it."""
    finite = [value for value in values if isfinite(value)]
    if losses and len(finite) > 1:
        low = min(finite)
        highest = min(max(finite), low + 2 * (quantiles(finite, n=20, method="inclusive")[-1] - low)) or max(finite)
        finite = [min(value, highest) for value in finite]
    return axis_for(finite, _HEIGHT - 40, 52)


def draw_seeds(
    traces: Sequence[Trace], best_steps: Sequence[int | None], epochs: Axis, height: Axis, title: str, label: str
) -> Panel:
    """Draws a thin line per seed and, from three seeds on, their median; `kept` holds each seed's kept step."""

    def place(epoch: float, value: float) -> tuple[float, float]:
        return epochs.at(epoch), height.at(min(max(value, height.low), height.high))

    parts = [text(0, 13, title, kind="head"), text(0, 28, label), frame(epochs, height, "epoch", "")]
    for seed, (values, step) in enumerate(zip(traces, best_steps, strict=True)):
        parts.append(path([place(e.epoch, value) for e, value in values], "curve thin", color(seed)))
        dots = [(e, value) for e, value in values if e.step == step]
        parts += [dot(*place(e.epoch, v), f"kept: step {e.step}, {v:.4g}", "series", 3.5, fill(seed)) for e, v in dots]
    middle = middle_of(traces)
    if middle:
        parts.append(path([place(*point) for point in middle], "curve middle"))
    last = "; ".join(f"{values[-1][1]:.4g}" for values in traces if values)
    return Panel(_WIDTH, _HEIGHT, f"{title}, {label} over epochs; at the end {last}", "".join(parts))


def middle_of(traces: Sequence[Trace]) -> list[tuple[float, float]]:
    """Epoch and value of the median over three or more seeds at each step, until half of them have stopped."""
    at: dict[int, list[tuple[float, float]]] = {}
    for values in traces:
        for evaluation, value in values:
            at.setdefault(evaluation.step, []).append((evaluation.epoch, value))
    if len(traces) < 3:
        return []
    majority = [at[step] for step in sorted(at) if 2 * len(at[step]) > len(traces)]
    return [(median(epoch for epoch, _ in points), median(value for _, value in points)) for points in majority]
