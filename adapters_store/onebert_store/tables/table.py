"""Columns of cells, and where in their file each row stands."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

MAX_NAMED = 10  # rows that a message names one by one


class Table(Mapping[str, list[Any]]):
    """Cells by column name; `a.b` is the field `b` of the objects in a column `a`.

    Args:
        columns: name -> cells, all of one length.
        origin: the file, for messages.
        numbers: each row's number in the file, from 1; where empty, rows are counted.
        unit: what the numbers count: lines of a text file, or rows.
        label_names: column -> names by label index, where the file has such names.
    """

    def __init__(
        self,
        columns: Mapping[str, list[Any]],
        origin: str = "data",
        numbers: Sequence[int] = (),
        unit: Literal["line", "row"] = "row",
        label_names: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._columns, self.origin = dict(columns), origin
        self.label_names = dict(label_names or {})
        self.rows = len(next(iter(self._columns.values()), []))
        self._numbers, self._unit = numbers or range(1, self.rows + 1), unit

    def __getitem__(self, name: str) -> list[Any]:
        if name in self._columns:
            return self._columns[name]
        column, dot, path = name.partition(".")
        cells = [field(cell, path) for cell in self._columns[column]] if dot and column in self._columns else []
        if all(cell is None for cell in cells):
            raise KeyError(name)
        return cells

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """How many columns there are."""
        return len(self._columns)

    def where(self, rows: Sequence[int]) -> str:
        """Names rows (counted from 0) as people find them: `data.csv line 7`, `data.csv lines 7, 9 and 30 more`."""
        named = [str(self._numbers[row]) for row in rows[:MAX_NAMED]]
        if (rest := len(rows) - len(named)) > 0:
            named.append(f"{rest:,} more")
        listed = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
        return f"{self.origin} {self._unit}{'s' * (len(rows) > 1)} {listed}"

    def place(self, row: int) -> dict[str, int]:
        """The number of a row (rows count from 0) for programs: `{"line": 7}` or `{"row": 7}`."""
        return {self._unit: self._numbers[row]}

    def take(self, rows: Sequence[int]) -> "Table":
        """The table with these rows only."""
        columns = {name: [cells[row] for row in rows] for name, cells in self._columns.items()}
        return Table(columns, self.origin, [self._numbers[row] for row in rows], self._unit, self.label_names)

    def with_column(self, name: str, cells: list[Any], label_names: tuple[str, ...]) -> "Table":
        """The table with one more column of labels, which replaces a column of the same name."""
        columns = {**self._columns, name: cells}
        return Table(columns, self.origin, self._numbers, self._unit, {**self.label_names, name: label_names})


def field(cell: Any, path: str) -> Any:
    """The field `b.c` of an object; None where there is none."""
    for key in path.split("."):
        cell = cell.get(key) if isinstance(cell, dict) else None
    return cell
