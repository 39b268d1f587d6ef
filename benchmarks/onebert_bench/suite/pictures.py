"""Draws rates as bars: a panel for each base and mix of texts or each load, a color for each dtype or side."""

import io
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from onebert_bench.numbers import Spread
from onebert_bench.report import COLORS, STYLE
from onebert_bench.suite.measure import Outcome
from onebert_bench.suite.over_http import HttpOutcome
from onebert_bench.suite.peers import ENTRIES
from onebert_bench.suite.scenes import Case, Scene
from onebert_bench.suite.servers import PEER_SERVERS

_COLOR = dict(zip(("float32", "bfloat16", "int8"), COLORS, strict=False))
_SIDES = {"OneBERT": COLORS[0], "the other": COLORS[5]}
_HEIGHT = 0.27  # of a bar; three dtypes share a line

Bar = tuple[str, str, Spread]
"""The line that a bar stands on, the name of its color, and its rate."""


def draw_scenes(found: Sequence[tuple[Scene, list[Outcome]]], tokens: Mapping[str, int]) -> bytes:
    """Tokens per second of each case that gave right answers, with smallest and largest, as PNG."""
    lines = list(dict.fromkeys(_name(outcome.case) for _, outcomes in found for outcome in outcomes))
    dtypes = {outcome.case.dtype for _, outcomes in found for outcome in outcomes}
    panels = {
        f"{scene.base}, {scene.mix}": [
            (_name(one.case), one.case.dtype, _thousands(scene, one, tokens[scene.name]))
            for one in outcomes
            if one.counts
        ]
        for scene, outcomes in found
    }
    colors = {dtype: color for dtype, color in _COLOR.items() if dtype in dtypes}
    return _draw(panels, lines, colors, "thousand tokens per second")


def _thousands(scene: Scene, outcome: Outcome, tokens: int) -> Spread:
    return Spread.of([scene.tokens(outcome.case, tokens) / ms for ms in outcome.ms])


def _name(case: Case) -> str:
    """The label without the dtype, which the color says."""
    if case.entry == "floor":
        return ENTRIES[case.entry].title
    return case.label.replace(f", {case.dtype}", "", 1).replace(", 1 tasks", "")


def draw_http(outcomes: Sequence[HttpOutcome]) -> bytes:
    """Requests per second of each peer and of ours beside it, as PNG."""
    panels: dict[str, list[Bar]] = {}
    for one in outcomes:
        bars = panels.setdefault(
            f"{one.tasks} task{'s' * (one.tasks > 1)}, {one.clients} client{'s' * (one.clients > 1)}", []
        )
        if one.theirs and not one.wrong:
            for side, loads in zip(_SIDES, (one.ours, one.theirs), strict=True):
                bars.append((PEER_SERVERS[one.peer].title, side, Spread.of([load.rate for load in loads])))
    lines = list(dict.fromkeys(PEER_SERVERS[outcome.peer].title for outcome in outcomes))
    return _draw(panels, lines, _SIDES, "requests per second")


def _draw(panels: Mapping[str, Sequence[Bar]], lines: list[str], colors: Mapping[str, str], unit: str) -> bytes:
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure = Figure((3.4 + 2.4 * len(panels), 1.3 + 0.36 * len(lines)), layout="constrained")
        axes: Sequence[Axes] = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for ax, (title, bars) in zip(axes, panels.items(), strict=True):
            for line, color, rate in bars:
                place = lines.index(line) + list(colors).index(color) * _HEIGHT
                error = [[rate.middle - rate.low], [rate.high - rate.middle]]
                ax.barh(place, rate.middle, _HEIGHT, color=colors[color], xerr=error, error_kw={"lw": 0.8})
                ax.text(rate.high, place, f" {rate.middle:.3g}", va="center", fontsize=7)
            ax.set_title(title)
            ax.set_xlabel(unit)
            ax.margins(x=0.2)
            ax.grid(axis="x", lw=0.4, color="#dddddd")
            ax.tick_params(axis="y", length=0)
        axes[0].set_yticks([place + _HEIGHT * (len(colors) - 1) / 2 for place in range(len(lines))], lines)
        for label, name in zip(axes[0].get_yticklabels(), lines, strict=True):
            label.set_fontweight("bold" if name.startswith(ENTRIES["ours"].title) else "normal")
        axes[0].set_ylim(len(lines) - 0.2, -0.5)
        patches = [Patch(color=color, label=name) for name, color in colors.items()]
        figure.legend(handles=patches, loc="outside lower right", ncols=len(patches), frameon=False)
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
