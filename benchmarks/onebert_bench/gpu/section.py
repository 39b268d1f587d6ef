"""What one section of a run found: a table, and the goals that it decides."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from onebert_bench.pages import markdown_table

Cell = str | float | int | None


@dataclass(frozen=True)
class Goal:
    """Something wanted and what was found.

    Attributes:
        at_least: whether more is better.
    """

    what: str
    found: float
    wanted: float
    at_least: bool

    @property
    def is_reached(self) -> bool:
        """Whether it is."""
        return self.found >= self.wanted if self.at_least else self.found <= self.wanted

    def line(self) -> list[str]:
        """For a table: what, found, wanted, reached."""
        sign = "≥" if self.at_least else "≤"
        return [self.what, shown(self.found), f"{sign} {shown(self.wanted)}", "yes" if self.is_reached else "no"]


@dataclass(frozen=True)
class Section:
    """A table with what it says."""

    title: str
    about: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    goals: Sequence[Goal] = ()

    def as_json(self) -> dict[str, object]:
        """For the results file."""
        return asdict(self)

    def page(self) -> str:
        """Markdown."""
        table = markdown_table(self.header, [[shown(cell) for cell in row] for row in self.rows])
        return f"## {self.title}\n\n{self.about}\n\n{table}"


def shown(cell: Cell) -> str:
    """Numbers in three digits, or all before the point."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    size = abs(cell)
    return f"{cell:,.0f}" if size >= 100 or cell == int(cell) else f"{cell:.1f}" if size >= 10 else f"{cell:.3g}"
