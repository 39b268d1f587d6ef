"""The result of one section: a table, and goals with what was measured."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from onebert_bench.pages import markdown_table

Cell = str | float | int | None


@dataclass(frozen=True)
class Goal:
    """A goal and what was measured.

    Attributes:
        at_least: whether `found` should be at least `wanted`; otherwise at most.
    """

    what: str
    found: float
    wanted: float
    at_least: bool

    @property
    def is_reached(self) -> bool:
        """Whether the goal is reached."""
        return self.found >= self.wanted if self.at_least else self.found <= self.wanted

    def line(self) -> list[str]:
        """A line of the table of goals: what, found, wanted, reached."""
        sign = "≥" if self.at_least else "≤"
        return [self.what, shown(self.found), f"{sign} {shown(self.wanted)}", "yes" if self.is_reached else "no"]


@dataclass(frozen=True)
class Section:
    """A table with its title, explanation and goals."""

    title: str
    about: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    goals: Sequence[Goal] = ()

    def as_json(self) -> dict[str, object]:
        """The section as JSON values."""
        return asdict(self)

    def page(self) -> str:
        """The section as Markdown."""
        table = markdown_table(self.header, [[shown(cell) for cell in row] for row in self.rows])
        return f"## {self.title}\n\n{self.about}\n\n{table}"


def shown(cell: Cell) -> str:
    """A cell as text; numbers have three digits, or all that stand before the point."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    size = abs(cell)
    return f"{cell:,.0f}" if size >= 100 or cell == int(cell) else f"{cell:.1f}" if size >= 10 else f"{cell:.3g}"
