"""Bytes on their way into a blob store: hashed while a temporary file takes them, until they are committed."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from onebert_store.blobs.digests import DIGEST_PREFIX
from onebert_store.blobs.protocol import BlobInfo
from onebert_store.disk import storage_errors_are_typed
from onebert_store.errors import TooLarge

UNFINISHED_GRACE = timedelta(hours=1)
"""Nothing unfinished is removed sooner: an upload may be writing to it."""

_UNFINISHED = "tmp-"


class StagingFolder:
    """Where writers keep their temporary files: a folder that exists, and that processes may share."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def writer(self, store: Callable[[Path, str], None]) -> "StagedFile":
        """A new temporary file.

        Args:
            store: takes the file and its digest when the writer commits; the file may be gone afterwards.
        """
        return StagedFile(self._folder, self._max_bytes, store)

    def unfinished(self) -> Iterator[BlobInfo]:
        """The files of writers that have not committed, also of processes that are gone."""
        for name, size, modified in files(self._folder):
            if name.startswith(_UNFINISHED):
                yield BlobInfo(name, size, modified)

    def drop_unfinished(self, before: datetime) -> None:
        """Removes what no writer has touched since `before`."""
        with storage_errors_are_typed():
            for one in self.unfinished():
                if one.modified < before:
                    (self._folder / one.digest).unlink(missing_ok=True)


class StagedFile:
    """A BlobWriter: a temporary file that a blob store takes on `commit`."""

    def __init__(self, folder: Path, max_bytes: int, store: Callable[[Path, str], None]) -> None:
        self._max_bytes = max_bytes
        self._store = store
        self._hash = hashlib.sha256()
        self._size = 0
        with storage_errors_are_typed():
            handle, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=folder)
        self._file = os.fdopen(handle, "w+b")
        self._path: Path | None = Path(name)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the bytes written so far."""
        return DIGEST_PREFIX + self._hash.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Appends; raises TooLarge past the store's limit, StorageFull or StorageUnavailable."""
        if self._size + len(chunk) > self._max_bytes:
            raise TooLarge(f"a delta file has at most {self._max_bytes} bytes")
        with storage_errors_are_typed():
            self._file.write(chunk)
        self._hash.update(chunk)
        self._size += len(chunk)

    def read(self) -> bytes:
        """All bytes written so far."""
        with storage_errors_are_typed():
            self._file.flush()
            self._file.seek(0)
            return self._file.read()

    def commit(self) -> str:
        """Makes the bytes durable under their digest and returns it; replaces a damaged blob of the same digest.

        Raises:
            StorageFull, StorageUnavailable: the bytes are discarded, as on any other failure.
        """
        if self._path is None:
            raise ValueError("already committed or discarded")
        try:
            with storage_errors_are_typed():
                self._file.flush()
            self._store(self._path, self.digest)
        finally:
            self.discard()
        return self.digest

    def discard(self) -> None:
        """Drops the bytes; does nothing after a commit or a discard."""
        # Nobody wants these bytes any more: a disk that refuses to remove or flush them is no error of the caller's.
        # What stays behind is swept as unfinished.
        with suppress(OSError):
            if self._path is not None:
                path, self._path = self._path, None
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


def files(folder: Path) -> Iterator[tuple[str, int, datetime]]:
    """Every regular file of a folder: name, size in bytes, time of its last change in UTC."""
    with storage_errors_are_typed(), os.scandir(folder) as entries:
        for entry in entries:
            try:
                found = entry.stat()
            except OSError as error:
                # Another process may have removed or renamed the file since it was listed; a link may lead nowhere.
                if isinstance(error, FileNotFoundError) or entry.is_symlink():
                    continue
                raise
            # A folder, pipe or device that somebody put here is no blob, whatever its name.
            if stat.S_ISREG(found.st_mode):
                yield entry.name, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC)
