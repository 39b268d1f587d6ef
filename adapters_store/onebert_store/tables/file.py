"""A file to read: its name, and its bytes from the beginning, as often as it takes to see what is in it."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class File:
    """Bytes with a name.

    Attributes:
        name: without its folder; its ending says how the file is read.
        open: gives the bytes from the beginning; closing them is the caller's.
    """

    name: str
    open: Callable[[], BufferedReader]

    def unpacked(self) -> BufferedReader:
        """The bytes, unpacked where the name ends in .gz; closing them closes the file, too."""
        stream = self.open()
        packed: Any = _Unpacked(stream) if self.name.lower().endswith(".gz") else stream
        return packed  # type: ignore[no-any-return]

    @property
    def bare_name(self) -> str:
        """The name in lower case, without .gz."""
        return self.name.lower().removesuffix(".gz")


def file_at(path: Path) -> File:
    """The file at a path."""
    return File(path.name, lambda: path.open("rb"))


class _Unpacked(gzip.GzipFile):
    """Closes what it reads, too."""

    def __init__(self, packed: BufferedReader) -> None:
        self._packed = packed
        super().__init__(fileobj=packed)

    def close(self) -> None:
        super().close()
        self._packed.close()
