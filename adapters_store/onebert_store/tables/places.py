"""Records where each row of a table stands in its file, and names rows in messages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Literal, NamedTuple, TypeVar

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
        groups = [list(found) for _, found in groupby(map(self.__getitem__, rows[:MAX_NAMED]), lambda place: place[:2])]
        said = []
        for at, group in enumerate(groups, start=1):
            numbers = [str(place.number) for place in group]
            if at == len(groups) and len(rows) > MAX_NAMED:
                numbers.append(f"{len(rows) - MAX_NAMED:,} more")
            listed = " and ".join(filter(None, (", ".join(numbers[:-1]), numbers[-1])))
            said.append(f"{group[0].file} {group[0].unit}{'s' * (len(numbers) > 1)} {listed}")
        return ", ".join(said)


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


def said_of_rows(bad: Mapping[str, Sequence[_Row]], where: Callable[[Sequence[_Row]], str]) -> str:
    """Describes bad rows in one sentence: the first `MAX_PROBLEMS` kinds, with rows named by `where`, and a count."""
    kinds = [f"{where(rows)}: {problem}" for problem, rows in islice(bad.items(), MAX_PROBLEMS)]
    rest = sum(map(len, islice(bad.values(), MAX_PROBLEMS, None)))
    return "; ".join(kinds) + (f"; and {rest:,} more bad rows" if rest else "")
