"""Checks that a workbook is not too large inside, before the library loads it into memory."""

from contextlib import suppress
from xml.parsers import expat
from zipfile import ZipFile

from onebert_store.errors import InvalidData

MAX_UNPACKED = 2**29  # bytes; a workbook's shared texts are held in memory
MAX_ROWS = 2**20  # the limit of spreadsheets

_MAX_ELEMENTS = 2**20  # XML elements that the library holds at a time: a row, a shared text, or another member
_MOST_PASSED = 2**23  # rows and shared texts
_MOST_EMPTY = 2**16  # shared texts with nothing in them
_SMALL = 4 * _MAX_ELEMENTS  # bytes; a smaller member has fewer elements, because each takes at least four


def check_size(packed: ZipFile, name: str) -> None:
    """Raises InvalidData for a workbook that would take far more memory than the largest table, or is damaged."""
    members = packed.infolist()
    # zipfile never unpacks more of a member than its stated size.
    if sum(member.file_size for member in members) > MAX_UNPACKED:
        raise InvalidData(f"{name} unpacks to more than {MAX_UNPACKED:,} bytes; save it as CSV")
    for member in members:
        # Checks all members, because a workbook may keep sheets and texts under any name.
        if member.file_size > _SMALL:
            # A member that is not XML fails in the library's reader; elements before the error have been counted here.
            with packed.open(member) as xml, suppress(expat.ExpatError):
                _Counter(name).parser.ParseFile(xml)


class _Counter:
    """Counts the elements that the library holds at a time; each takes over a hundred bytes."""

    def __init__(self, name: str) -> None:
        self._name, self._elements, self._passed, self._empty = name, 0, 0, 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self._text = False
        self.parser.CharacterDataHandler = self._characters

    def _start(self, tag: str, attributes: object) -> None:
        self._elements += 1
        if self._elements > _MAX_ELEMENTS:
            raise InvalidData(
                f"{self._name} has more than {_MAX_ELEMENTS:,} cells in a row, or as many elements of another kind; "
                "save it as CSV"
            )

    def _characters(self, text: str) -> None:
        self._text = True

    def _end(self, tag: str) -> None:
        kind = tag.rpartition(":")[2]
        if kind in ("row", "si"):
            # A shared text has at least two elements; real programs do not write many empty ones.
            self._empty += kind == "si" and (self._elements < 2 or not self._text)
            if self._empty > _MOST_EMPTY:
                raise InvalidData(f"{self._name} has more than {_MOST_EMPTY:,} empty texts; save it as CSV")
            self._elements, self._text = 0, False
            self._passed += 1
            if self._passed > _MOST_PASSED:
                raise InvalidData(f"{self._name} has more than {_MOST_PASSED:,} rows or texts; save it as CSV")
