"""Plots as SVG with a description in words, and pictures of several; colours come from the page's style."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

from onebert_store.file.strict_json import printable
from onebert_training.report.document import style

_COLORS = 6  # colours of series in the page's style
ACROSS = 3  # panels per row in a file
_GAP = 24


@dataclass(frozen=True)
class Axis:
    """One side of a plot: values from `low` to `high` (low below high) at picture coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, max_ticks: int = 5) -> list[float]:
        """Round numbers within the axis."""
        rough = (self.high - self.low) / max_ticks
        power = 10.0 ** floor(log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
        first = -floor(-self.low / step + 1e-9)
        return [step * i for i in range(first, floor(self.high / step + 1e-9) + 1)]


def axis_for(values: Iterable[float], start: float, end: float, zero: bool = False) -> Axis:
    """An axis with margins for all finite values; with `zero` it includes 0."""
    finite = [value for value in values if isfinite(value)] + [0.0] * zero
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    # No margin beyond an end at 0.
    return Axis(
        low if low == 0 and zero else low - room, high if high == 0 and zero and low else high + room, start, end
    )


@dataclass(frozen=True)
class Panel:
    """One plot: SVG content in its own coordinates, with a description for screen readers."""

    width: float
    height: float
    says: str
    body: str

    def svg(self, attrs: str = "") -> str:
        """The plot as an element of a page, with the attributes `attrs`."""
        return (
            f'<svg {attrs} viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escaped(self.says)}" '
            f'xmlns="http://www.w3.org/2000/svg">{self.body}</svg>'
        )


def escaped(words: str) -> str:
    """Escaped words; a `?` replaces characters that XML forbids."""
    return escape(printable(words, len(words)))


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Words at a point."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escaped(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(x: float, y: float, says: str = "", kind: str = "mark", radius: float = 4, look: str = "") -> str:
    """A dot; `says` is its tooltip."""
    title = f"<title>{escaped(says)}</title>" if says else ""
    styled = f' style="{look}"' if look else ""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"{styled}>{title}</circle>'


def path(points: Sequence[tuple[float, float]], kind: str, look: str = "") -> str:
    """A line through points."""
    styled = f' style="{look}"' if look else ""
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{steps}"{styled}/>'


def color(number: int) -> str:
    """The line style of a series: six colors that color-blind people can distinguish, then the same colors dashed."""
    dashes = ("", "; stroke-dasharray: 6 3", "; stroke-dasharray: 2 3")[number // _COLORS % 3]
    return f"stroke: var(--series-{number % _COLORS}){dashes}"


def fill(number: int) -> str:
    """The dot style of a series."""
    return f"fill: var(--series-{number % _COLORS})"


def frame(x: Axis, y: Axis, across: str, up: str) -> str:
    """Grid, numbers and names of both axes."""
    x_min, x_max, bottom, top = min(x.start, x.end), max(x.start, x.end), max(y.start, y.end), min(y.start, y.end)
    parts = []
    for tick in y.ticks():
        parts += [
            line(x_min, y.at(tick), x_max, y.at(tick), "grid"),
            text(x_min - 6, y.at(tick) + 4, f"{tick:g}", "end"),
        ]
    for tick in x.ticks():
        parts.append(line(x.at(tick), top, x.at(tick), bottom, "grid"))
        parts.append(text(x.at(tick), bottom + 15, f"{tick:g}", "middle"))
    parts += [line(x_min, bottom, x_max, bottom, "axis")]
    return "".join(parts) + text(x_max, bottom + 31, across, "end") + text(x_min, top - 9, up, "start")


def calibration(curve: Sequence[dict[str, float]], says: str) -> Panel:
    """The share of right answers against confidence, with the diagonal."""
    x, y = Axis(0, 1, 44, 320), Axis(0, 1, 250, 26)
    parts = [frame(x, y, "confidence", "share that is right"), line(x.at(0), y.at(0), x.at(1), y.at(1), "ideal")]
    for point in curve:
        at = x.at(point["confidence"])
        label = f"{point['answers']:,} answers: confidence {point['confidence']:.3f}, right {point['right']:.3f}"
        parts.append(line(at, y.at(point["low"]), at, y.at(point["high"]), "whisker"))
        parts.append(dot(at, y.at(point["right"]), label))
    return Panel(330, 290, says, "".join(parts))


def scatter(points: Sequence[Sequence[float]], says: str) -> Panel:
    """Answered against right numbers, with the diagonal."""
    numbers = [number for point in points for number in point]
    x, y = axis_for(numbers, 44, 320), axis_for(numbers, 250, 26)
    body = frame(x, y, "right", "answered") + line(x.start, y.start, x.end, y.end, "ideal")
    body += "".join(dot(x.at(right), y.at(answered), kind="cloud", radius=2.6) for right, answered in points)
    return Panel(330, 290, says, body)


@dataclass(frozen=True)
class Picture:
    """Panels with their file's name, title and caption."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]

    def file(self) -> str:
        """The whole picture as an SVG file with the pages' style."""
        across = min(ACROSS, len(self.panels))
        width = max(panel.width for panel in self.panels)
        rows = [self.panels[i * across : (i + 1) * across] for i in range(ceil(len(self.panels) / across))]
        parts: list[str] = []
        y: float = _GAP
        for row in rows:
            for i, panel in enumerate(row):
                place = f'x="{_GAP + i * (width + _GAP):g}" y="{y:g}" width="{panel.width:g}" height="{panel.height:g}"'
                parts.append(panel.svg(place))
            y += max(panel.height for panel in row) + _GAP
        total = _GAP + across * (width + _GAP)
        ground = '<rect width="100%" height="100%" style="fill: var(--ground)"/>'
        body = f"<style>{style()}</style>{ground}{''.join(parts)}"
        return Panel(total, y, self.title, body).svg(f'width="{total:g}" height="{y:g}"') + "\n"


def make(kind: str, base: str, title: str, caption: str, panels: Sequence[Panel]) -> Picture:
    """A picture of at least one panel; `kind` and `base` make up the file's name."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{base.rsplit('/', 1)[-1]}-{kind}").strip("-").lower()
    return Picture(name[:100], title, caption, tuple(panels))
