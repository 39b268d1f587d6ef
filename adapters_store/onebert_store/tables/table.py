"""A table: columns of cells, and the place of each row in its file, by which messages name it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple, TypeVar

MAX_NAMED = 10  # rows that a message names one by one
MAX_PROBLEMS = 3  # kinds of bad rows that a message names

Unit = Literal["line", "row"]  # unit of the row numbers: lines of a text file, or rows
_Row = TypeVar("_Row")


class Place(NamedTuple):
    """A row's file, and its number there from 1."""

    file: str
    unit: Unit
    number: int


@dataclass(frozen=True)
class Places:
    """The place of each table row: `file_of` is its file's index in `files`, `numbers` its number in that file."""

    files: Sequence[tuple[str, Unit]]
    file_of: Sequence[int]
    numbers: Sequence[int]

    def __getitem__(self, row: int) -> Place:
        return Place(*self.files[self.file_of[row]], self.numbers[row])

    def take(self, rows: Sequence[int]) -> "Places":
        return Places(self.files, [self.file_of[row] for row in rows], [self.numbers[row] for row in rows])

    def named(self, rows: Sequence[int]) -> str:
        """Names rows (counted from 0), the first MAX_NAMED one by one: `a.csv lines 7, 9 and 30 more`."""
        groups = [list(run) for _, run in groupby(map(self.__getitem__, rows[:MAX_NAMED]), lambda place: place[:2])]
        parts = []
        for at, group in enumerate(groups, start=1):
            numbers = [str(place.number) for place in group]
            if at == len(groups) and len(rows) > MAX_NAMED:
                numbers.append(f"{len(rows) - MAX_NAMED:,} more")
            listed = " and ".join(filter(None, (", ".join(numbers[:-1]), numbers[-1])))
            parts.append(f"{group[0].file} {group[0].unit}{'s' * (len(numbers) > 1)} {listed}")
        return ", ".join(parts)


def places_in(file: str, unit: Unit, numbers: Sequence[int]) -> Places:
    """Returns the places of rows of one file."""
    return Places(((file, unit),), [0] * len(numbers), numbers)


def join_places(parts: Sequence[Places]) -> Places:
    """Concatenates the places of several tables."""
    files, file_of, numbers = list[tuple[str, Unit]](), list[int](), list[int]()
    for part in parts:
        file_of += [len(files) + file for file in part.file_of]
        numbers += part.numbers
        files += part.files
    return Places(files, file_of, numbers)


def describe_bad_rows(bad: Mapping[str, Sequence[_Row]], where: Callable[[Sequence[_Row]], str]) -> str:
    """Describes bad rows in one sentence: the first `MAX_PROBLEMS` kinds, with rows named by `where`, and a count."""
    kinds = [f"{where(rows)}: {problem}" for problem, rows in islice(bad.items(), MAX_PROBLEMS)]
    rest = sum(map(len, islice(bad.values(), MAX_PROBLEMS, None)))
    return "; ".join(kinds) + (f"; and {rest:,} more bad rows" if rest else "")


class Table(Mapping[str, list[Any]]):
    """Cells by column name; `a.b` is the field `b` of the objects in a column `a`.

    Args:
        columns: name -> cells, all of one length.
        origin: names the file or files in messages.
        places: of each row; None counts the rows of `origin`.
        label_names: column -> names by label index, if the file has them.
        notes, kinds: tell the user how the files were read.
    """

    def __init__(
        self,
        columns: Mapping[str, list[Any]],
        origin: str = "data",
        places: Places | None = None,
        label_names: Mapping[str, tuple[str, ...]] | None = None,
        notes: Sequence[str] = (),
        kinds: Sequence[str] = (),
    ) -> None:
        self._columns, self.origin = dict(columns), origin
        self.notes, self.kinds = tuple(notes), tuple(kinds)
        self.label_names = dict(label_names or {})
        self.rows = len(next(iter(self._columns.values()), []))
        self.places = places or places_in(origin, "row", range(1, self.rows + 1))

    def __getitem__(self, name: str) -> list[Any]:
        column, dot, path = name.partition(".")
        if not dot or column not in self._columns:
            return self._columns[name]
        inner = [field(cell, path) for cell in self._columns[column]]
        if name in self._columns:
            # Some rows may have a column `a.b`, and others an object in a column `a`.
            pairs = zip(self._columns[name], inner, strict=True)
            return [within if cell is None else cell for cell, within in pairs]
        if all(cell is None for cell in inner):
            raise KeyError(name)
        return inner

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """Counts the columns, not the rows."""
        return len(self._columns)

    def where(self, rows: Sequence[int]) -> str:
        """Names rows (counted from 0) for people: `data.csv line 7`, `data.csv lines 7, 9 and 30 more`."""
        return self.places.named(rows)

    def place(self, row: int) -> dict[str, Any]:
        """Returns a row's place for programs: `{"line": 7}` or `{"row": 7}`, with `file` if there are several files."""
        file, unit, number = self.places[row]
        return {"file": file, unit: number} if len(self.places.files) > 1 else {unit: number}

    def take(self, rows: Sequence[int]) -> "Table":
        columns = {name: [cells[row] for row in rows] for name, cells in self._columns.items()}
        return Table(columns, self.origin, self.places.take(rows), self.label_names, self.notes, self.kinds)

    def only(self, names: Collection[str]) -> "Table":
        columns = {name: cells for name, cells in self._columns.items() if name in names}
        return Table(columns, self.origin, self.places, self.label_names, self.notes, self.kinds)

    def with_column(self, name: str, cells: list[Any], label_names: tuple[str, ...]) -> "Table":
        columns = {**self._columns, name: cells}
        names = {**self.label_names, name: label_names}
        return Table(columns, self.origin, self.places, names, self.notes, self.kinds)

    def with_notes(self, notes: Sequence[str]) -> "Table":
        return Table(self._columns, self.origin, self.places, self.label_names, (*self.notes, *notes), self.kinds)

    def with_label_names(self, label_names: Mapping[str, tuple[str, ...]]) -> "Table":
        return Table(self._columns, self.origin, self.places, label_names, self.notes, self.kinds)


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """Returns a row's cell in the column `name` (may be `a.b`); None if it is missing."""
    column, _, path = name.partition(".")
    return field(row.get(column), path) if path and row.get(name) is None else row.get(name)


def field(cell: Any, path: str) -> Any:
    """Returns the field `b.c` of an object; None if it is missing."""
    for key in path.split("."):
        cell = cell.get(key) if isinstance(cell, dict) else None
    return cell
