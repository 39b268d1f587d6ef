"""Columns of cells, and where in their file each row stands."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, TypeVar

MAX_NAMED = 10  # rows that a message names one by one
MAX_PROBLEMS = 3  # kinds of bad rows that a message names

_Row = TypeVar("_Row")


class Table(Mapping[str, list[Any]]):
    """Cells by column name; `a.b` is the field `b` of the objects in a column `a`.

    Args:
        columns: name -> cells, all of one length.
        origin: the file, for messages.
        numbers: each row's number in the file, from 1; where empty, rows are counted.
        unit: what the numbers count: lines of a text file, or rows.
        label_names: column -> names by label index, where the file has such names.
        notes: what a user should know of how the file was read.
        kinds: how each of the files was read, in words.
    """

    def __init__(
        self,
        columns: Mapping[str, list[Any]],
        origin: str = "data",
        numbers: Sequence[int] = (),
        unit: Literal["line", "row"] = "row",
        label_names: Mapping[str, tuple[str, ...]] | None = None,
        notes: Sequence[str] = (),
        kinds: Sequence[str] = (),
    ) -> None:
        self._columns, self.origin = dict(columns), origin
        self.notes, self.kinds = tuple(notes), tuple(kinds)
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
        named = [self._numbers[row] for row in rows[:MAX_NAMED]]
        return named_rows(self.origin, self._unit, named, len(rows))

    def place(self, row: int) -> dict[str, int]:
        """The number of a row (rows count from 0) for programs: `{"line": 7}` or `{"row": 7}`."""
        return {self._unit: self._numbers[row]}

    def take(self, rows: Sequence[int]) -> "Table":
        """The table with these rows only."""
        columns = {name: [cells[row] for row in rows] for name, cells in self._columns.items()}
        numbers = [self._numbers[row] for row in rows]
        return Table(columns, self.origin, numbers, self._unit, self.label_names, self.notes, self.kinds)

    def with_column(self, name: str, cells: list[Any], label_names: tuple[str, ...]) -> "Table":
        """The table with one more column of labels, which replaces a column of the same name."""
        columns = {**self._columns, name: cells}
        names = {**self.label_names, name: label_names}
        return Table(columns, self.origin, self._numbers, self._unit, names, self.notes, self.kinds)


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """The cell of a row in a column of this name, or `a.b`; None where there is none."""
    column, _, path = name.partition(".")
    return field(row.get(column), path) if path and name not in row else row.get(name)


def field(cell: Any, path: str) -> Any:
    """The field `b.c` of an object; None where there is none."""
    for key in path.split("."):
        cell = cell.get(key) if isinstance(cell, dict) else None
    return cell


def named_rows(origin: str, unit: str, numbers: Sequence[int], count: int | None = None) -> str:
    """Names rows by their numbers in a file: `data.csv lines 7, 9 and 30 more`.

    Args:
        origin: the file.
        unit: what the numbers count.
        numbers: of the rows; the first `MAX_NAMED` are named.
        count: how many rows there are, where not all numbers are given.
    """
    named = [str(number) for number in numbers[:MAX_NAMED]]
    count = len(numbers) if count is None else count
    if count > len(named):
        named.append(f"{count - len(named):,} more")
    listed = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    return f"{origin} {unit}{'s' * (count > 1)} {listed}"


def said_of_rows(bad: Mapping[str, Sequence[_Row]], where: Callable[[Sequence[_Row]], str]) -> str:
    """One sentence about all bad rows: the first `MAX_PROBLEMS` kinds with the rows that `where` names, and a count."""
    kinds = [f"{where(rows)}: {problem}" for problem, rows in islice(bad.items(), MAX_PROBLEMS)]
    rest = sum(map(len, islice(bad.values(), MAX_PROBLEMS, None)))
    return "; ".join(kinds) + (f"; and {rest:,} more bad rows" if rest else "")
