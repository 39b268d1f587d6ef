"""Finds the input files: local files, or objects of a bucket (s3://) through pyarrow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import fs

from onebert_store.blobs.address import BUCKET
from onebert_store.errors import InvalidData
from onebert_store.tables.records import LINES, READERS, extension_of

PARQUET = ".parquet"
# Metadata files of data sets; names that begin with _ or . are skipped as well.
_DESCRIPTIONS = ("labels.json", "state.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")


@dataclass(frozen=True)
class Source:
    """One input file, at a path or at `s3://bucket/key`.

    `size` (bytes) and `modified` (nanoseconds since 1970) detect a changed file. `sheet` None is a workbook's first.
    """

    address: str
    size: int
    modified: int
    sheet: str | None = None

    @property
    def name(self) -> str:
        return Path(_bare(self.address)).name

    def open(self) -> pyarrow.NativeFile:
        system, path = _resolve(self.address)
        try:
            return system.open_input_file(path)
        except OSError as error:
            raise InvalidData(f"{self.name} is not readable ({type(error).__name__})") from None

    def buffered(self) -> BufferedReader:
        return BufferedReader(self.open())


def find_sources(addresses: Sequence[str], sheet: str | None = None) -> list[Source]:
    """Every named file, and the data files of every named folder, sorted by name; InvalidData for other endings."""
    sources = [replace(source, sheet=sheet) for address in addresses for source in _sources_at(address)]
    addresses = [source.address for source in sources]
    if twice := [address for i, address in enumerate(addresses) if address in addresses[:i]]:
        raise InvalidData(f"{_bare(twice[0])} is given twice")
    return sources


def _sources_at(address: str) -> list[Source]:
    system, path = _resolve(address)
    try:
        [info] = system.get_file_info([path])
        if info.type == fs.FileType.Directory:
            inside = sorted(system.get_file_info(fs.FileSelector(path)), key=lambda info: info.base_name)
            named = [info for info in inside if info.type == fs.FileType.File and extension_of(info.base_name)]
            files = [info for info in named if info.base_name not in _DESCRIPTIONS and info.base_name[0] not in "_."]
            folder, _, query = address.partition("?")
            tail = f"?{query}" if query else ""
            # The Hub's layout.
            if not files and any(info.base_name == "data" and info.type == fs.FileType.Directory for info in inside):
                return _sources_at(f"{folder.rstrip('/')}/data{tail}")
            if not files:
                raise InvalidData(f"the folder {address} has no file ending in {', '.join(READERS)}")
            return [_source(f"{folder.rstrip('/')}/{info.base_name}{tail}", info) for info in files]
    except OSError as error:
        raise InvalidData(f"{address} is not readable ({type(error).__name__})") from None
    if info.type != fs.FileType.File:
        raise InvalidData(f"there is no data at {address}, neither a file nor a folder")
    if not extension_of(info.base_name) and not info.base_name.lower().endswith(tuple(LINES)):
        raise InvalidData(f"{info.base_name}: the name ends in one of {', '.join([*READERS, *LINES])}")
    return [_source(address, info)]


def _source(address: str, info: Any) -> Source:
    return Source(address, info.size, info.mtime_ns)


def _resolve(address: str) -> tuple[Any, str]:
    if not address.startswith(BUCKET):
        return fs.LocalFileSystem(), str(Path(address).expanduser())
    try:
        system, path = fs.FileSystem.from_uri(address)
    except (pyarrow.ArrowException, ValueError) as error:
        raise InvalidData(f"{_bare(address)} is not an address of a bucket ({type(error).__name__})") from None
    return system, path


def _bare(address: str) -> str:
    """Removes the options behind the `?` of a bucket's address, which may contain keys."""
    return address.partition("?")[0] if address.startswith(BUCKET) else address
