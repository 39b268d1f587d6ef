"""Reads rows of an .xlsx sheet as texts, like its CSV export."""

import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date, datetime, time, timedelta
from itertools import islice
from typing import Any
from zipfile import BadZipFile

from onebert_store.errors import InvalidData
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import suggestion
from onebert_store.tables.file import File
from onebert_store.tables.text.csv_rows import header_of

_MAX_ROWS = 2**20  # the limit of spreadsheets
_TITLES = 10  # rows of one cell that may be above the header
# `_x000D_` is a carriage return, `_x005F_` an escaped underscore; an emoji may be two escapes.
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")
_ERRORS = {"#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!", "#DIV/0!", "#GETTING_DATA"}


class Sheet(Iterator[tuple[int, list[str | None]]]):
    """Iterates over row numbers as a spreadsheet shows them, and cells up to the last non-empty one; skips blank rows.

    A formula yields its last value. Rows of one cell above wider rows are titles and not the header. `doubt` tells
    which of several sheets is read and which rows are titles; else it is empty.
    """

    def __init__(self, file: File, opened: ExitStack) -> None:
        self._name = file.name
        try:
            self._rows = self._open(file, opened)
        except InvalidData:
            raise
        except Exception as error:  # the library raises errors of any kind for a bad file
            raise self._unreadable(error) from None
        self._number, self._above = 0, list[tuple[int, list[str | None]]]()
        above = list(islice(self, 1))
        while above and len(above[-1][1]) == 1 and len(above) <= _TITLES and (row := next(self, None)):
            above.append(row)
        titles = len(above) - 1 if above and len(above[-1][1]) > 1 else 0
        header = above[titles] if above else (0, [])
        if titles:
            self.doubt += (
                f"{'; ' * bool(self.doubt)}the header of {file.name} is row {header[0]}: nothing above it is read"
            )
        self._above = above[titles + 1 :]
        self.header = header_of([cell or "" for cell in header[1]], file.name)

    def __next__(self) -> tuple[int, list[str | None]]:
        if self._above:
            return self._above.pop(0)
        while True:
            try:
                row = next(self._rows, None)
            except Exception as error:  # see above
                raise self._unreadable(error) from None
            if row is None:
                raise StopIteration
            self._number += 1
            # A row may state any number, and the rows before it count as blank.
            if self._number > _MAX_ROWS:
                raise InvalidData(f"{self._name} has more than {_MAX_ROWS:,} rows, which no spreadsheet has")
            cells = [_as_text(cell) for cell in row]
            while cells and cells[-1] is None:
                cells.pop()
            if cells:
                return self._number, cells

    def _open(self, file: File, opened: ExitStack) -> Iterator[tuple[Any, ...]]:
        from openpyxl import load_workbook  # noqa: PLC0415 - slow to import, and few files need it

        # openpyxl warns at any time about features that it ignores, such as styles and rules for cells.
        warnings.filterwarnings("ignore", module="openpyxl")
        stream = opened.enter_context(file.open())
        workbook = load_workbook(stream, read_only=True, data_only=True, keep_links=False)
        opened.callback(workbook.close)
        sheets = {sheet.title: sheet for sheet in workbook.worksheets if sheet.sheet_state == "visible"}
        if not sheets:
            raise InvalidData(f"{file.name} has no sheet")
        wanted = file.sheet or next(iter(sheets))
        if wanted not in sheets:
            unknown = f"{printable(wanted, 40)}{suggestion(wanted, sheets)}"
            titles = ", ".join(printable(name, 40) for name in list(sheets)[:10])
            raise InvalidData(f"{file.name} has no sheet {unknown} (the sheets are {titles})")
        self.doubt = ""
        if len(sheets) > 1 and file.sheet is None:
            self.doubt = f"{file.name} has {len(sheets)} sheets, of which the first is read"
        # A file's own statement of its size may be wrong.
        sheets[wanted].reset_dimensions()
        return iter(sheets[wanted].iter_rows(values_only=True))

    def _unreadable(self, error: Exception) -> InvalidData:
        kind = "no workbook" if isinstance(error, BadZipFile) else type(error).__name__
        return InvalidData(f"{self._name} is not readable ({kind})")


def _as_text(cell: Any) -> str | None:
    if cell is None or cell == "" or (isinstance(cell, str) and cell in _ERRORS):
        return None
    if isinstance(cell, str):
        return _unescaped(cell) if "_x" in cell else cell
    if isinstance(cell, timedelta):
        minutes, seconds = divmod(cell, timedelta(minutes=1))
        return f"{minutes // 60}:{minutes % 60:02}:{seconds.seconds:02}"
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, datetime) and cell.time() == time():
        return cell.date().isoformat()
    return (
        cell.isoformat(" ") if isinstance(cell, datetime) else cell.isoformat() if isinstance(cell, date) else str(cell)
    )


def _unescaped(text: str) -> str:
    units = _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text)
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
