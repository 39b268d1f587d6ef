"""Where the files of a job are: a folder of this machine, or a prefix of a bucket."""

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
# What pyarrow writes into.
Sink: TypeAlias = Path | pyarrow.NativeFile


class FolderPlace:
    """A folder, in which a rename makes a file: files by their names, each of them written once and whole.

    Every method but `held` raises StorageFull where there is no room, and StorageUnavailable where a bucket fails.

    Attributes:
        name: what messages call it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, folder.name

    @contextmanager
    def held(self) -> Iterator[None]:
        """Made where it is not there, and this process's own while the block runs, where a place can be.

        Raises:
            StoreLocked: it is another's.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        sync(self._folder.parent)
        with (self._folder / LOCK).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreLocked("another process is scoring into this folder") from None
            yield

    def names(self) -> Iterable[str]:
        """Every file."""
        return [path.name for path in self._folder.iterdir()]

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; None where there is none."""
        path = self._folder / name
        return path.read_bytes() if path.exists() else None

    def keep(self, name: str, data: bytes) -> None:
        """Has a small file there from now on, also after a crash; one that was there stays as it is."""
        if not (self._folder / name).exists():
            write_whole(self._folder / name, data)

    @contextmanager
    def part(self, name: str) -> Iterator[Sink]:
        """A large file, which is there when the block has ended without an error, also after a crash."""
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
        """What the end of a Parquet file says of it."""
        return pyarrow.parquet.read_metadata(self._folder / name)


class BucketPlace:
    """A prefix of a bucket, where one request makes a file if there is none by that name.

    Nobody holds it: of two processes at one job the one that ends a part first has written it, and the other one's
    work was in vain. A part is in memory until it is whole.
    """

    def __init__(self, url: str) -> None:
        bucket, prefix = bucket_of(url, "answers")
        from onebert_store.blobs.objects import Objects  # noqa: PLC0415 - its package is optional

        self._objects, self.name = Objects(bucket, prefix, "the bucket of the answers"), url

    def held(self) -> AbstractContextManager[None]:
        """See FolderPlace."""
        return nullcontext()

    def names(self) -> Iterable[str]:
        """See FolderPlace."""
        return self._objects.names()

    def read(self, name: str) -> bytes | None:
        """See FolderPlace."""
        return self._objects.read(name)

    def keep(self, name: str, data: bytes) -> None:
        """See FolderPlace."""
        self._objects.create(name, data)

    @contextmanager
    def part(self, name: str) -> Iterator[Sink]:
        """See FolderPlace."""
        with pyarrow.BufferOutputStream() as stream:
            yield stream
            self._objects.create(name, memoryview(stream.getvalue()).cast("B"))

    def metadata(self, name: str) -> pyarrow.parquet.FileMetaData:
        """See FolderPlace."""
        # The last bytes of the file are four for the length of the metadata before them, and four that say Parquet.
        size = int.from_bytes(self._objects.end(name, 8)[:4], "little")
        return pyarrow.parquet.read_metadata(pyarrow.BufferReader(self._objects.end(name, size + 8)))


Place: TypeAlias = FolderPlace | BucketPlace


def place_at(where: str) -> Place:
    """The place at an address: a folder's path, or `s3://BUCKET/PREFIX`.

    Raises:
        InvalidSettings: the bucket's address is none, or its variables or its package are missing.
    """
    return BucketPlace(where) if where.startswith(BUCKET) else FolderPlace(Path(where))
