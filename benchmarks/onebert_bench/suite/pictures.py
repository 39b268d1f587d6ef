"""Draws rates as bars: a panel for each base and mix of texts, a color for each dtype."""

import io
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from onebert_bench.style import COLORS, STYLE
from onebert_bench.suite.measure import Outcome
from onebert_bench.suite.over_http import HttpOutcome
from onebert_bench.suite.peers.entries import ENTRIES
from onebert_bench.suite.peers.servers import PEER_SERVERS
from onebert_bench.suite.scenes import Case, Scene
from onebert_bench.suite.spread import Spread

_COLOR = dict(zip(("float32", "bfloat16", "int8"), COLORS, strict=False))
_HEIGHT = 0.27  # of a bar; three dtypes share a line


def draw_scenes(found: Sequence[tuple[Scene, list[Outcome]]], tokens: Mapping[str, int]) -> bytes:
    """Tokens per second of each case that gave right answers, with smallest and largest, as PNG."""
    with mpl.rc_context(STYLE):
        names = list(dict.fromkeys(_name(outcome.case) for _, outcomes in found for outcome in outcomes))
        figure = Figure((3.4 + 2.4 * len(found), 1.3 + 0.36 * len(names)), layout="constrained")
        panels = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
        for ax, (scene, outcomes) in zip(panels, found, strict=True):
            _panel(ax, scene, outcomes, names, tokens[scene.name])
        panels[0].set_yticks([place + _HEIGHT for place in range(len(names))], names)
        for label, name in zip(panels[0].get_yticklabels(), names, strict=True):
            label.set_fontweight("bold" if name.startswith(ENTRIES["ours"].title) else "normal")
        panels[0].set_ylim(len(names) - 0.2, -0.5)
        dtypes = dict.fromkeys(outcome.case.dtype for _, outcomes in found for outcome in outcomes)
        _legend(figure, {dtype: _COLOR[dtype] for dtype in dtypes})
        return _png(figure)


def _panel(ax: Axes, scene: Scene, outcomes: Sequence[Outcome], names: list[str], tokens: int) -> None:
    for outcome in outcomes:
        if not outcome.counts:
            continue
        place = names.index(_name(outcome.case)) + list(_COLOR).index(outcome.case.dtype) * _HEIGHT
        rate = Spread.of([scene.tokens(outcome.case, tokens) / ms for ms in outcome.ms])  # thousands per second
        error = [[rate.middle - rate.low], [rate.high - rate.middle]]
        ax.barh(place, rate.middle, _HEIGHT, color=_COLOR[outcome.case.dtype], xerr=error, error_kw={"lw": 0.8})
        ax.text(rate.high, place, f" {rate.middle:.3g}", va="center", fontsize=7)
    ax.set_title(f"{scene.base}, {scene.mix}")
    ax.margins(x=0.15)
    ax.set_xlabel("thousand tokens per second")
    ax.grid(axis="x", lw=0.4, color="#dddddd")
    ax.tick_params(axis="y", length=0)


def _name(case: Case) -> str:
    """The label without the dtype, which the color says."""
    if case.entry == "floor":
        return ENTRIES[case.entry].title
    return case.label.replace(f", {case.dtype}", "", 1).replace(", 1 tasks", "")


def _legend(figure: Figure, colors: Mapping[str, str]) -> None:
    patches = [Patch(color=color, label=name) for name, color in colors.items()]
    figure.legend(handles=patches, loc="outside lower right", ncols=len(patches), frameon=False)


def draw_http(outcomes: Sequence[HttpOutcome]) -> bytes:
    """Requests per second of each peer and of ours beside it, as PNG."""
    with mpl.rc_context(STYLE):
        loads = list(dict.fromkeys((outcome.tasks, outcome.clients) for outcome in outcomes))
        peers = list(dict.fromkeys(outcome.peer for outcome in outcomes))
        figure = Figure((3.2 + 2.4 * len(loads), 1.6 + 0.5 * len(peers)), layout="constrained")
        panels = figure.subplots(1, len(loads), sharey=True, squeeze=False)[0]
        for ax, (tasks, clients) in zip(panels, loads, strict=True):
            here = [o for o in outcomes if (o.tasks, o.clients) == (tasks, clients) and o.theirs and not o.wrong]
            for outcome in here:
                for shift, (loads_of, color) in enumerate(((outcome.ours, COLORS[0]), (outcome.theirs, COLORS[5]))):
                    rate = Spread.of([load.rate for load in loads_of])
                    place = peers.index(outcome.peer) + shift * _HEIGHT
                    error = [[rate.middle - rate.low], [rate.high - rate.middle]]
                    ax.barh(place, rate.middle, _HEIGHT, color=color, xerr=error, error_kw={"lw": 0.8})
                    ax.text(rate.high, place, f" {rate.middle:.3g}", va="center", fontsize=7)
            ax.set_title(f"{tasks} task{'s' * (tasks > 1)}, {clients} client{'s' * (clients > 1)}")
            ax.set_xlabel("requests per second")
            ax.margins(x=0.2)
            ax.tick_params(axis="y", length=0)
        panels[0].set_yticks([i + _HEIGHT / 2 for i in range(len(peers))], [PEER_SERVERS[p].title for p in peers])
        panels[0].set_ylim(len(peers) - 0.2, -0.5)
        _legend(figure, {"OneBERT": COLORS[0], "the other": COLORS[5]})
        return _png(figure)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
