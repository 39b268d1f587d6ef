"""Draws how much each bias and gain vector changes: symbols by layers, one panel per method."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from onebert_training.report.document import short
from onebert_training.report.plots import Panel, Picture, escaped, make, text
from onebert_training.report.tables import Results, Trial, drawable

_TERMS = (
    *"b_e b_LN0 g_LN0 b_q b_k s_k b_v s_v b_m1 o_m1 b_LN1 g_LN1".split(),
    *"b_m2 o_m2 b_mg s_m3 b_m3 o_m3 b_LN2 g_LN2 b_LNf g_LNf b_p".split(),
)
_LEFT, _TOP, _LINE = 48, 26, 17

Vector = tuple[str, int | None]  # symbol and layer


def draw_changes(results: Results) -> list[Picture]:
    """Draws mean absolute differences (BitFit, Figure 1; BitFit+, Figures 4 to 15), one picture per column."""
    caption = (
        "Mean absolute difference between each vector before and after training (BitFit, Figure 1), mean over the "
        "seeds; one color scale, a square root, for all methods; grey vectors are not trained. b_k changes "
        "with rotary positions and in DeBERTa alone: else a bias of all keys cancels in the softmax. –: embeddings and "
        "pooler."
    )
    pictures = []
    for _, name, trials in drawable(results, lambda trial: any(run.change for run in trial.runs)):
        panels = _maps({method: _mean_change(trial) for method, trial in trials.items()})
        title = f"Change of biases and gains on {name}"
        pictures.append(make(f"change-{name}", results.base, title, caption, panels))
    return pictures


def _mean_change(trial: Trial) -> dict[Vector, float]:
    by_vector: dict[Vector, list[float]] = {}
    for run in trial.runs:
        for change in run.change:
            by_vector.setdefault((change.symbol, change.layer), []).append(change.mean_abs)
    return {key: fmean(values) for key, values in by_vector.items()}


def _maps(changes: Mapping[str, Mapping[Vector, float]]) -> list[Panel]:
    vectors = {vector for change in changes.values() for vector in change}
    symbols = sorted({symbol for symbol, _ in vectors}, key=_order)
    layers = sorted({layer for _, layer in vectors}, key=lambda layer: (layer is None, layer or 0))
    top = max(value for change in changes.values() for value in change.values()) or 1.0
    return [_map(short(method), change, symbols, layers, top) for method, change in changes.items()]


def _map(
    title: str, change: Mapping[Vector, float], symbols: Sequence[str], layers: Sequence[int | None], top: float
) -> Panel:
    wide = min(44.0, (330 - _LEFT) / len(layers))
    parts = [text(0, 13, title, kind="head")]
    for row, symbol in enumerate(symbols):
        y = _TOP + _LINE * row
        parts.append(text(_LEFT - 7, y + 12.5, symbol, "end"))
        for place, layer in enumerate(layers):
            value = change.get((symbol, layer))
            look = 'class="untrained"' if value is None else f'class="cell" fill-opacity="{(value / top) ** 0.5:.3f}"'
            says = f"{symbol}, {_where(layer)}: {'not trained' if value is None else f'{value:.3g}'}"
            parts.append(
                f'<rect {look} x="{_LEFT + wide * place:.1f}" y="{y}" width="{wide - 1:.1f}" height="{_LINE - 1}">'
                f"<title>{escaped(says)}</title></rect>"
            )
    bottom = _TOP + _LINE * len(symbols)
    every = max(1, -(-len(layers) // 12))
    for place, layer in list(enumerate(layers))[::every]:
        parts.append(text(_LEFT + wide * (place + 0.5), bottom + 13, "–" if layer is None else str(layer), "middle"))
    parts.append(text(0, bottom + 30, f"layer; the strongest is {top:.3g}"))
    largest = max(change, key=lambda vector: change[vector])
    says = f"{title}: the largest change is {change[largest]:.3g}, of {largest[0]}, {_where(largest[1])}"
    return Panel(340, bottom + 36, says, "".join(parts))


def _where(layer: int | None) -> str:
    return "outside the layers" if layer is None else f"layer {layer}"


def _order(symbol: str) -> tuple[int, str]:
    return (_TERMS.index(symbol) if symbol in _TERMS else len(_TERMS), symbol)
