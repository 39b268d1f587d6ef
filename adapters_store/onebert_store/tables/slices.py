"""Groups the rows of a table by the values of a column, for measures by slices."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain, count
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_store.errors import InvalidSettings
from onebert_store.file.strict_json import shown
from onebert_store.tables.columns import named
from onebert_store.tables.table import Table

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

MAX_VALUES = 20
BINS = 5  # for numeric columns with more distinct values than this
EMPTY = "(empty)"
MISSING = ("nan", "null", "n/a", "#n/a")  # programs write these for "no value"; "none" and "na" may be real labels
_WHOLE = 2**53  # floats represent every whole number up to here


def cells_of(table: Table, column: str) -> Sequence[Any]:
    """The cells of a column, or of a field `a.b` of its objects; raises InvalidSettings for a missing column."""
    try:
        return table[named(table, column) or column]
    except KeyError:
        there = ", ".join(one[:40] for one in list(table)[:10])
        raise InvalidSettings(f"--slice: no column {shown(column)} (the columns are {there})") from None


def group(cells: Sequence[Any]) -> Mapping[str, Indices]:
    """Row indices by value: numeric bins in order, or other values by falling frequency, with the rare ones merged."""
    numbers = [_number(cell) for cell in cells]
    filled = [number for number, cell in zip(numbers, cells, strict=True) if not _is_missing(cell)]
    if filled and None not in filled and len(set(filled)) > BINS:
        return _bins(np.array([np.nan if number is None else number for number in numbers]))
    found: dict[str, list[int]] = {}
    for row, cell in enumerate(cells):
        found.setdefault(_text(cell), []).append(row)
    ranked = sorted(found.items(), key=lambda one: -len(one[1]))
    groups = [(shown(value) or EMPTY, np.array(rows)) for value, rows in ranked[:MAX_VALUES]]
    if rest := ranked[MAX_VALUES:]:
        groups.append((f"({len(rest):,} other values)", np.array([row for _, rows in rest for row in rows])))
    return _told_apart(groups)


def _told_apart(groups: Iterable[tuple[str, Indices]]) -> dict[str, Indices]:
    """Groups by name; when different values are truncated or rounded to one name, later ones get a number."""
    found: dict[str, Indices] = {}
    for name, rows in groups:
        numbered = (f"{name} ({number})" for number in count(2))
        found[next(one for one in chain([name], numbered) if one not in found)] = rows
    return found


def _bins(numbers: Floats) -> dict[str, Indices]:
    there = numbers[~np.isnan(numbers)]
    # Equal quantiles collapse into one edge, so that a value is in one bin only.
    edges = np.unique(np.quantile(there, np.linspace(0, 1, BINS + 1)[1:-1], method="inverted_cdf"))
    place = np.searchsorted(edges, numbers)
    found = []
    for i in range(len(edges) + 1):
        rows = np.flatnonzero((place == i) & ~np.isnan(numbers))
        if len(rows):
            low, high = _digits(numbers[rows].min()), _digits(numbers[rows].max())
            found.append((low if low == high else f"{low} to {high}", rows))
    if len(there) < len(numbers):
        found.append((EMPTY, np.flatnonzero(np.isnan(numbers))))
    return _told_apart(found)


def _digits(number: float) -> str:
    """A number as displayed; whole numbers such as timestamps keep every digit."""
    return f"{number:.0f}" if number == round(number) and abs(number) < _WHOLE else f"{number:.6g}"


def _number(cell: Any) -> float | None:
    try:
        value = float(cell) if isinstance(cell, str | Real | Decimal) and not isinstance(cell, bool) else np.nan
    except (ValueError, OverflowError):
        return None
    return value if np.isfinite(value) else None


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _is_missing(cell: Any) -> bool:
    """Whether a cell of a numeric column is empty or a common placeholder for a missing value."""
    text = _text(cell)
    return not text or text.casefold() in MISSING
