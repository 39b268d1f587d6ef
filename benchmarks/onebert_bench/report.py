"""Results as tables, sections with goals, and pages; tables go between a page's markers, beside the prose."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onebert_bench.numbers import Spread

Json = dict[str, Any]
Cell = str | float | int | Spread | None
GOALS = ("goal", "dtype", "wanted", "found")


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

    @property
    def bound(self) -> str:
        """`wanted`, and on which side of it `found` should be."""
        return f"{'≥' if self.at_least else '≤'} {self.wanted:g}"


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
    """The number of goals that are reached, and a table of the others, below a heading, if there are any goals."""
    if not goals:
        return []
    missed: dict[tuple[str, str, str], list[str]] = {}
    for goal in goals:
        if not goal.is_reached:
            missed.setdefault((goal.what, goal.dtype, goal.bound), []).append(f"{goal.on}: {shown(goal.found)}")
    reached = f"## Goals\n\n{sum(goal.is_reached for goal in goals)} of {len(goals)} are reached"
    rows = [[*goal, "; ".join(found)] for goal, found in missed.items()]
    return [f"{reached}; these are not:\n\n{markdown_table(GOALS, rows)}" if rows else f"{reached}."]


def shown(cell: Cell) -> str:
    """A cell as text; numbers have three digits, or all that stand before the point."""
    if cell is None:
        return "–"
    if isinstance(cell, str | Spread):
        return str(cell)
    size = abs(cell)
    return f"{cell:,.0f}" if size >= 100 or cell == int(cell) else f"{cell:.1f}" if size >= 10 else f"{cell:.3g}"
