"""Results as tables and sections of pages; tables go between a page's markers, beside the prose."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onebert_bench.numbers import Spread

Json = dict[str, Any]
Cell = str | float | int | Spread | None


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
    after, count = block.subn(lambda match: f"{match[1]}{text}\n{match[2]}", before)
    if count != 1:
        raise ValueError(f"{page.name} has no place for {name}")
    page.write_text(after, encoding="utf-8")


@dataclass(frozen=True)
class Section:
    """A table with its title and explanation.

    Attributes:
        numbers: for the results file, more than the table has.
    """

    title: str
    about: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: Mapping[str, object] = field(default_factory=dict)

    def as_json(self) -> Json:
        """The section as JSON values."""
        return asdict(self)

    def page(self) -> str:
        """The section as Markdown."""
        table = markdown_table(self.header, [[shown(cell) for cell in row] for row in self.rows])
        return "\n\n".join(part for part in (f"## {self.title}", self.about, table) if part)


def shown(cell: Cell) -> str:
    """A cell as text; numbers have three digits, or all that stand before the point."""
    if cell is None:
        return "–"
    if isinstance(cell, str | Spread):
        return str(cell)
    size = abs(cell)
    return f"{cell:,.0f}" if size >= 100 or cell == int(cell) else f"{cell:.1f}" if size >= 10 else f"{cell:.3g}"
