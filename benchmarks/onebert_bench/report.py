"""Results as tables, sections with goals, and pages; tables go between a page's markers, beside the prose."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onebert_bench.numbers import Spread

Json = dict[str, Any]
Cell = str | float | int | Spread | None
GOALS = ("goal", "dtype", "on", "found", "wanted", "reached")

# Okabe and Ito's colors, which color-blind people can tell apart, without black, in which medians are drawn, and
# without yellow, which is faint on white; and the style that pictures of measurements share.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.dpi": 130,
    "text.parse_math": False,  # a `$` in a name is a dollar
}


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def write_section(page: Path, name: str, text: str) -> None:
    """Replaces what stands between `<!-- name -->` and `<!-- /name -->` in a page.

    Raises:
        ValueError: the page does not have the markers.
    """
    before = page.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    after, count = block.subn(lambda found: f"{found[1]}{text}\n{found[2]}", before)
    if count != 1:
        raise ValueError(f"{page.name} has no place for {name}")
    page.write_text(after, encoding="utf-8")


@dataclass(frozen=True)
class Goal:
    """A goal and what was measured.

    Attributes:
        on: base and texts.
        at_least: whether `found` should be at least `wanted`; otherwise at most.
    """

    what: str
    dtype: str
    on: str
    found: Spread | float
    wanted: float
    at_least: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the goal is reached."""
        found = self.found.middle if isinstance(self.found, Spread) else self.found
        return found >= self.wanted if self.at_least else found <= self.wanted

    def line(self) -> list[str]:
        """A line of the table of goals, with the columns of `GOALS`."""
        wanted = f"{'≥' if self.at_least else '≤'} {self.wanted:g}"
        return [self.what, self.dtype, self.on, shown(self.found), wanted, "yes" if self.is_reached else "no"]


@dataclass(frozen=True)
class Section:
    """A table with its title, explanation and goals.

    Attributes:
        numbers: for the results file, more than the table has.
    """

    title: str
    about: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    goals: Sequence[Goal] = ()
    numbers: Mapping[str, object] = field(default_factory=dict)

    def as_json(self) -> Json:
        """The section as JSON values."""
        return asdict(self)

    def page(self) -> str:
        """The section as Markdown."""
        table = markdown_table(self.header, [[shown(cell) for cell in row] for row in self.rows])
        return "\n\n".join(part for part in (f"## {self.title}", self.about, table) if part)


def goals_page(goals: Sequence[Goal]) -> list[str]:
    """The table of goals, below its heading, if there are any."""
    return [f"## Goals\n\n{markdown_table(GOALS, [goal.line() for goal in goals])}"] if goals else []


def shown(cell: Cell) -> str:
    """A cell as text; numbers have three digits, or all that stand before the point."""
    if cell is None:
        return "–"
    if isinstance(cell, str | Spread):
        return str(cell)
    size = abs(cell)
    return f"{cell:,.0f}" if size >= 100 or cell == int(cell) else f"{cell:.1f}" if size >= 10 else f"{cell:.3g}"
