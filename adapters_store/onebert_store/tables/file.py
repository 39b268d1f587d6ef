"""A named file whose bytes can be read from the start several times."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

from onebert_store.errors import InvalidData

# A file may unpack to FREE bytes, or to MOST_TIMES its size if that is more; text compresses about tenfold.
FREE, MOST_TIMES = 2**26, 200


class Unpacking:
    """Counts the bytes that a file unpacks to, and rejects a decompression bomb."""

    def __init__(self, name: str) -> None:
        self._name, self._bytes = name, 0

    def add(self, unpacked: int, packed: int) -> None:
        """Adds unpacked bytes; raises InvalidData if they are too many for `packed`, the packed bytes read so far."""
        self._bytes += unpacked
        if self._bytes > max(FREE, packed * MOST_TIMES):
            raise InvalidData(
                f"{self._name} unpacks to more than {FREE:,} bytes and {MOST_TIMES} times its size, which no table does"
            )


@dataclass(frozen=True)
class File:
    """A file: `name` without folder, whose ending decides; `open` its bytes, to close; `sheet` of a workbook."""

    name: str
    open: Callable[[], BufferedReader]
    sheet: str | None = None

    def unpacked(self) -> BufferedReader:
        """Opens the bytes, decompressed if the name ends in .gz; closing the stream also closes the file."""
        stream = self.open()
        return BufferedReader(_Unpacked(stream, self.name), 2**17) if self.name.lower().endswith(".gz") else stream

    @property
    def bare_name(self) -> str:
        return self.name.lower().removesuffix(".gz")


def file_at(path: Path, sheet: str | None = None) -> File:
    """Makes a File of a path."""
    return File(path.name, lambda: path.open("rb"), sheet)


class _Unpacked(RawIOBase):
    def __init__(self, packed: BufferedReader, name: str) -> None:
        self._packed, self._gzip, self._count = packed, gzip.GzipFile(fileobj=packed), Unpacking(name)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._gzip.read1(len(buffer))
        self._count.add(len(data), self._packed.tell())
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        super().close()
        self._gzip.close()
        self._packed.close()
