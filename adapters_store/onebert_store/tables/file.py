"""A file to read: its name, and its bytes from the beginning, as often as it takes to see what is in it."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

from onebert_store.errors import InvalidData

# A file that unpacks to more than so many bytes is at most so many times smaller; text is ten times smaller.
FREE, MOST_TIMES = 2**26, 200


class Unpacking:
    """Counts what a file unpacks to, and refuses what was made to unpack to far more than its bytes.

    Args:
        name: of the file.
    """

    def __init__(self, name: str) -> None:
        self._name, self._bytes = name, 0

    def add(self, unpacked: int, packed: int) -> None:
        """Counts more bytes, which came of `packed` bytes together with those before.

        Raises:
            InvalidData: they are too many.
        """
        self._bytes += unpacked
        if self._bytes > max(FREE, packed * MOST_TIMES):
            raise InvalidData(
                f"{self._name} unpacks to more than {FREE:,} bytes and {MOST_TIMES} times its size, which no table does"
            )


@dataclass(frozen=True)
class File:
    """Bytes with a name.

    Attributes:
        name: without its folder; its ending says how the file is read.
        open: gives the bytes from the beginning; closing them is the caller's.
        sheet: of a workbook, which is read; None is the first.
    """

    name: str
    open: Callable[[], BufferedReader]
    sheet: str | None = None

    def unpacked(self) -> BufferedReader:
        """The bytes, unpacked where the name ends in .gz; closing them closes the file, too."""
        stream = self.open()
        return BufferedReader(_Unpacked(stream, self.name), 2**17) if self.name.lower().endswith(".gz") else stream

    @property
    def bare_name(self) -> str:
        """The name in lower case, without .gz."""
        return self.name.lower().removesuffix(".gz")


def file_at(path: Path, sheet: str | None = None) -> File:
    """The file at a path."""
    return File(path.name, lambda: path.open("rb"), sheet)


class _Unpacked(RawIOBase):
    """What a gzip holds, as far as it is in proportion; closes the file, too."""

    def __init__(self, packed: BufferedReader, name: str) -> None:
        self._packed, self._gzip, self._count = packed, gzip.GzipFile(fileobj=packed), Unpacking(name)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._gzip.read1(len(buffer))
        self._count.add(len(found), self._packed.tell())
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        super().close()
        self._gzip.close()
        self._packed.close()
