"""A named file whose bytes can be read from the start several times."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path


@dataclass(frozen=True)
class File:
    """A file: `name` without folder, whose ending decides; `open` its bytes, to close; `sheet` of a workbook."""

    name: str
    open: Callable[[], BufferedReader]
    sheet: str | None = None

    def unpacked(self) -> BufferedReader:
        """Opens the bytes, decompressed if the name ends in .gz; closing the stream also closes the file."""
        stream = self.open()
        return BufferedReader(_Unpacked(stream), 2**17) if self.name.lower().endswith(".gz") else stream

    @property
    def bare_name(self) -> str:
        return self.name.lower().removesuffix(".gz")


def file_at(path: Path, sheet: str | None = None) -> File:
    """Makes a File of a path."""
    return File(path.name, lambda: path.open("rb"), sheet)


class _Unpacked(gzip.GzipFile):
    """Closes the packed file, too."""

    def __init__(self, packed: BufferedReader) -> None:
        super().__init__(fileobj=packed)
        self._packed = packed

    def close(self) -> None:
        super().close()
        self._packed.close()
