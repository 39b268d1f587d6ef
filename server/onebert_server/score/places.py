"""Storage of a job's files: a local folder, or a prefix of a bucket."""

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TypeAlias

import pyarrow
import pyarrow.parquet

from onebert_store.blobs.address import BUCKET, bucket_of
from onebert_store.disk import full_disk_is_typed, sync, write_whole
from onebert_store.errors import StoreLocked

LOCK = ".lock"
# pyarrow writes into either.
Sink: TypeAlias = Path | pyarrow.NativeFile


class FolderPlace:
    """A folder; each file is written once and appears by a rename.

    `locked` raises StoreLocked; the other methods raise StorageFull, and StorageUnavailable if a bucket fails.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, folder.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Creates and locks the folder for the block."""
        self._folder.mkdir(parents=True, exist_ok=True)
        sync(self._folder.parent)
        with (self._folder / LOCK).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreLocked("another process is scoring into this folder") from None
            yield

    def names(self) -> Iterable[str]:
        return [path.name for path in self._folder.iterdir()]

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; None if it does not exist."""
        path = self._folder / name
        return path.read_bytes() if path.exists() else None

    def keep(self, name: str, data: bytes) -> None:
        """Creates a small file durably; an existing one stays unchanged."""
        if not (self._folder / name).exists():
            write_whole(self._folder / name, data)

    @contextmanager
    def part(self, name: str) -> Iterator[Sink]:
        """A large file; it appears, durably, when the block ends without an error."""
        unfinished = self._folder / f".{name}.unfinished"
        with full_disk_is_typed():
            try:
                yield unfinished
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            sync(unfinished)
            unfinished.replace(self._folder / name)
            sync(self._folder)

    def metadata(self, name: str) -> pyarrow.parquet.FileMetaData:
        return pyarrow.parquet.read_metadata(self._folder / name)


class BucketPlace:
    """A prefix of a bucket; a conditional request creates a file unless the name exists.

    Buckets have no lock: if two processes score one job, the first to finish a part wins and the other's work is
    wasted. A part stays in memory until it is complete.
    """

    def __init__(self, url: str) -> None:
        bucket, prefix = bucket_of(url, "answers")
        from onebert_store.blobs.objects import Objects  # noqa: PLC0415 - its package is optional

        self._objects, self.name = Objects(bucket, prefix, "the bucket of the answers"), url

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def names(self) -> Iterable[str]:
        return self._objects.names()

    def read(self, name: str) -> bytes | None:
        return self._objects.read(name)

    def keep(self, name: str, data: bytes) -> None:
        self._objects.create(name, data)

    @contextmanager
    def part(self, name: str) -> Iterator[Sink]:
        with pyarrow.BufferOutputStream() as stream:
            yield stream
            self._objects.create(name, memoryview(stream.getvalue()).cast("B"))

    def metadata(self, name: str) -> pyarrow.parquet.FileMetaData:
        # A Parquet file ends with its metadata, the metadata's length (4 bytes) and the magic number (4 bytes).
        size = int.from_bytes(self._objects.end(name, 8)[:4], "little")
        return pyarrow.parquet.read_metadata(pyarrow.BufferReader(self._objects.end(name, size + 8)))


Place: TypeAlias = FolderPlace | BucketPlace


def place_at(where: str) -> Place:
    """The place at a folder's path or at `s3://BUCKET/PREFIX`; raises InvalidSettings if the bucket cannot be used."""
    return BucketPlace(where) if where.startswith(BUCKET) else FolderPlace(Path(where))
