"""Groups the rows of a table by the values of a column, for measures by slices."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain, count
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_store.errors import InvalidSettings
from onebert_store.file.strict_json import printable
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
        existing = ", ".join(name[:40] for name in list(table)[:10])
        raise InvalidSettings(f"--slice: no column {printable(column)} (the columns are {existing})") from None


def group(cells: Sequence[Any]) -> Mapping[str, Indices]:
    """Row indices by value: numeric bins in order, or other values by falling frequency, with the rare ones merged."""
    numbers = [_number(cell) for cell in cells]
    filled = [number for number, cell in zip(numbers, cells, strict=True) if not _is_missing(cell)]
    if filled and None not in filled and len(set(filled)) > BINS:
        return _bins(np.array([np.nan if number is None else number for number in numbers]))
    rows_of: dict[str, list[int]] = {}
    for row, cell in enumerate(cells):
        rows_of.setdefault(_text(cell), []).append(row)
    ranked = sorted(rows_of.items(), key=lambda item: -len(item[1]))
    groups = [(printable(value) or EMPTY, np.array(rows)) for value, rows in ranked[:MAX_VALUES]]
    if rest := ranked[MAX_VALUES:]:
        groups.append((f"({len(rest):,} other values)", np.array([row for _, rows in rest for row in rows])))
    return _with_distinct_names(groups)


def _with_distinct_names(groups: Iterable[tuple[str, Indices]]) -> dict[str, Indices]:
    """Groups by name; when different values are truncated or rounded to one name, later ones get a number."""
    unique: dict[str, Indices] = {}
    for name, rows in groups:
        numbered = (f"{name} ({number})" for number in count(2))
        unique[next(candidate for candidate in chain([name], numbered) if candidate not in unique)] = rows
    return unique


def _bins(numbers: Floats) -> dict[str, Indices]:
    present = numbers[~np.isnan(numbers)]
    # Equal quantiles collapse into one edge, so that a value is in one bin only.
    edges = np.unique(np.quantile(present, np.linspace(0, 1, BINS + 1)[1:-1], method="inverted_cdf"))
    place = np.searchsorted(edges, numbers)
    groups = []
    for i in range(len(edges) + 1):
        rows = np.flatnonzero((place == i) & ~np.isnan(numbers))
        if len(rows):
            low, high = _digits(numbers[rows].min()), _digits(numbers[rows].max())
            groups.append((low if low == high else f"{low} to {high}", rows))
    if len(present) < len(numbers):
        groups.append((EMPTY, np.flatnonzero(np.isnan(numbers))))
    return _with_distinct_names(groups)


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
