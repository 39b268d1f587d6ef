"""Plots as SVG that says in words what it shows; colours come from the page's style."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

from onebert_store.file.strict_json import shown

_COLORS = 6  # of a series, in the page's style


@dataclass(frozen=True)
class Axis:
    """Numbers along one side of a plot.

    Attributes:
        low, high: its ends, low below high.
        start, end: where these stand, in units of the picture.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value stands."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers within the axis."""
        rough = (self.high - self.low) / most
        power = 10.0 ** floor(log10(rough))
        step = next(power * one for one in (1, 2, 5, 10) if power * one >= rough * (1 - 1e-9))
        first = -floor(-self.low / step + 1e-9)
        return [step * i for i in range(first, floor(self.high / step + 1e-9) + 1)]


def axis_for(values: Iterable[float], start: float, end: float, zero: bool = False) -> Axis:
    """An axis with room at its ends that all finite values fit on; with `zero` it has 0 on it."""
    found = [value for value in values if isfinite(value)] + [0.0] * zero
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    # What begins or ends at 0 goes no further.
    return Axis(
        low if low == 0 and zero else low - room, high if high == 0 and zero and low else high + room, start, end
    )


@dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
        width, height: in units of its own.
        says: what it shows, for whoever does not see it.
        body: SVG.
    """

    width: float
    height: float
    says: str
    body: str

    def svg(self, more: str = "") -> str:
        """The plot as an element of a page; `more` are attributes."""
        return (
            f'<svg {more} viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{written(self.says)}" '
            f'xmlns="http://www.w3.org/2000/svg">{self.body}</svg>'
        )


def written(words: str) -> str:
    """Somebody's words in a picture; for characters that no XML file may hold stands a `?`."""
    return escape(shown(words, len(words)))


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Words at a place."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{written(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(x: float, y: float, says: str = "", kind: str = "mark", radius: float = 4, look: str = "") -> str:
    """A dot that says its number where a pointer rests on it."""
    title = f"<title>{written(says)}</title>" if says else ""
    styled = f' style="{look}"' if look else ""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"{styled}>{title}</circle>'


def path(points: Sequence[tuple[float, float]], kind: str, look: str = "") -> str:
    """A line through points."""
    styled = f' style="{look}"' if look else ""
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{steps}"{styled}/>'


def color(number: int) -> str:
    """The look of the lines of a series: six colors that color-blind people can tell apart, then the same dashed."""
    dashes = ("", "; stroke-dasharray: 6 3", "; stroke-dasharray: 2 3")[number // _COLORS % 3]
    return f"stroke: var(--series-{number % _COLORS}){dashes}"


def fill(number: int) -> str:
    """The look of the dots of a series."""
    return f"fill: var(--series-{number % _COLORS})"


def frame(x: Axis, y: Axis, across: str, up: str) -> str:
    """Grid, numbers and names of both axes."""
    left, right, bottom, top = min(x.start, x.end), max(x.start, x.end), max(y.start, y.end), min(y.start, y.end)
    parts = []
    for tick in y.ticks():
        parts += [line(left, y.at(tick), right, y.at(tick), "grid"), text(left - 6, y.at(tick) + 4, f"{tick:g}", "end")]
    for tick in x.ticks():
        parts.append(line(x.at(tick), top, x.at(tick), bottom, "grid"))
        parts.append(text(x.at(tick), bottom + 15, f"{tick:g}", "middle"))
    parts += [line(left, bottom, right, bottom, "axis")]
    return "".join(parts) + text(right, bottom + 31, across, "end") + text(left, top - 9, up, "start")


def calibration(curve: Sequence[dict[str, float]], says: str) -> Panel:
    """The share of right answers against their confidence, beside the line on which the two are equal."""
    x, y = Axis(0, 1, 44, 320), Axis(0, 1, 250, 26)
    parts = [frame(x, y, "confidence", "share that is right"), line(x.at(0), y.at(0), x.at(1), y.at(1), "ideal")]
    for point in curve:
        at = x.at(point["confidence"])
        shown = f"{point['answers']:,} answers: confidence {point['confidence']:.3f}, right {point['right']:.3f}"
        parts.append(line(at, y.at(point["low"]), at, y.at(point["high"]), "whisker"))
        parts.append(dot(at, y.at(point["right"]), shown))
    return Panel(330, 290, says, "".join(parts))


def scatter(points: Sequence[Sequence[float]], says: str) -> Panel:
    """What is answered against what is right, beside the line on which the two are equal."""
    numbers = [number for point in points for number in point]
    x, y = axis_for(numbers, 44, 320), axis_for(numbers, 250, 26)
    body = frame(x, y, "right", "answered") + line(x.start, y.start, x.end, y.end, "ideal")
    body += "".join(dot(x.at(right), y.at(said), kind="cloud", radius=2.6) for right, said in points)
    return Panel(330, 290, says, body)
