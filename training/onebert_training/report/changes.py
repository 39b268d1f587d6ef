"""Draws how much each bias and gain vector changes: symbols by layers, a panel for each method."""

from collections.abc import Mapping
from math import ceil
from statistics import fmean

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from onebert_training.report.style import Picture, save, short
from onebert_training.report.tables import Results, Trial, headings

_TERMS = "b_e b_LN0 g_LN0 b_q b_k s_k b_v s_v b_m1 o_m1 b_LN1 g_LN1 b_m2 o_m2 s_m3 b_m3 o_m3 b_LN2 g_LN2 b_p".split()


def draw_changes(results: Results) -> list[Picture]:
    """Draws mean absolute differences (BitFit, Figure 1; BitFit+, Figures 4 to 15), a picture for each column."""
    pictures = []
    for column, title in zip(results.columns, headings(results), strict=True):
        changed = {
            m: c for m in results.methods if (c := results.best.get((m, column))) and any(r.change for r in c.runs)
        }
        if changed:
            name = f"{column.data} ({title[1]})"
            caption = (
                "Mean absolute difference between each vector before and after training (BitFit, Figure 1), "
                "mean over the seeds; one color scale, a square root, for all methods; hatched vectors are "
                "not trained. b_k never changes: a bias of all keys cancels in the softmax."
            )
            figure = _maps({method: _mean_change(trial) for method, trial in changed.items()})
            pictures.append(
                save(figure, f"change-{name}", results.base, f"Change of biases and gains on {name}", caption)
            )
    return pictures


def _mean_change(trial: Trial) -> dict[tuple[str, int | None], float]:
    found: dict[tuple[str, int | None], list[float]] = {}
    for run in trial.runs:
        for change in run.change:
            found.setdefault((change.symbol, change.layer), []).append(change.mean_abs)
    return {key: fmean(values) for key, values in found.items()}


def _maps(changes: Mapping[str, Mapping[tuple[str, int | None], float]]) -> Figure:
    vectors = {vector for change in changes.values() for vector in change}
    symbols = sorted({symbol for symbol, _ in vectors}, key=_order)
    layers = sorted({layer for _, layer in vectors}, key=lambda layer: (layer is None, layer or 0))
    across = min(2, len(changes))
    down = ceil(len(changes) / across)
    width = 1.2 + max(2.6, 0.36 * len(layers))
    figure = Figure((width * across + 1.2, down * max(1.6, 0.75 + 0.21 * len(symbols))), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
    top = max(value for change in changes.values() for value in change.values()) or 1.0
    for ax, (method, change) in zip(axes, changes.items(), strict=False):
        grid = [[change.get((symbol, layer), np.nan) for layer in layers] for symbol in symbols]
        ax.set_facecolor("#eeeeee")
        ax.patch.set(hatch="////", edgecolor="#cccccc")
        ax.imshow(np.ma.masked_invalid(grid), cmap="viridis_r", norm=PowerNorm(0.5, 0, top), aspect="auto")
        ax.set_title(short(method), fontsize=9)
        ax.set_yticks(range(len(symbols)), symbols)
        every = max(1, len(layers) // 12)
        ax.set_xticks(range(0, len(layers), every), ["–" if layer is None else str(layer) for layer in layers[::every]])
        ax.tick_params(length=0, labelbottom=True)
        ax.spines[:].set_visible(False)
    for ax in axes[len(changes) :]:
        ax.set_visible(False)
    figure.supxlabel("layer (–: embeddings and pooler)" if None in layers else "layer", fontsize=9)
    image = ScalarMappable(PowerNorm(0.5, 0, top), "viridis_r")
    bar = figure.colorbar(
        image, ax=axes, label="mean |difference|", pad=0.01, aspect=30, shrink=min(1.0, 3 / figure.get_figheight())
    )
    bar.formatter = FuncFormatter(lambda value, _: f"{value:.3g}")
    return figure


def _order(symbol: str) -> tuple[int, str]:
    """Sorts symbols in the order of the forward pass."""
    return (_TERMS.index(symbol) if symbol in _TERMS else len(_TERMS), symbol)
