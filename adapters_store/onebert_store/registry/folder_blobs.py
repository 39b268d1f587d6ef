"""Blobs as files of one folder, named by their hash; a rename commits, so a file is there whole or not at all."""

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from onebert_store.disk import storage_errors_are_typed, sync
from onebert_store.errors import StoreCorrupt, TooLarge
from onebert_store.registry.blobs import DIGEST_PREFIX, BlobInfo

_NAME = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = "tmp-"
_PIECE_BYTES = 2**20


class FolderBlobs:
    """A BlobStore in a folder. Opening the folder removes nothing: processes may share it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        with storage_errors_are_typed():
            sync(folder.parent)

    def writer(self) -> "FileWriter":
        """A temporary file in the same folder, so that a rename commits it."""
        return FileWriter(self._folder, self._max_bytes)

    def put(self, data: bytes) -> str:
        """Writes and commits; returns the digest."""
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    def get(self, digest: str) -> bytes:
        """The bytes, verified; raises StoreCorrupt where they are missing or damaged."""
        return b"".join(self._pieces(digest))

    def verify(self, digest: str, stop: Callable[[], bool] = lambda: False) -> bool:
        """Reads the blob in pieces, never whole; raises StoreCorrupt where it is missing or damaged."""
        return not any(stop() for _ in self._pieces(digest))

    def delete(self, digest: str) -> None:
        """Removes the blob if it is there; durable after `sync`."""
        with storage_errors_are_typed():
            _path(self._folder, digest).unlink(missing_ok=True)

    def sync(self) -> None:
        """Makes all removals so far durable."""
        with storage_errors_are_typed():
            sync(self._folder)

    def blobs(self) -> Iterator[BlobInfo]:
        """Every blob, in no order."""
        for name, size, modified in self._files():
            if _NAME.fullmatch(name):
                yield BlobInfo(DIGEST_PREFIX + name, size, modified)

    def unfinished(self) -> Iterator[BlobInfo]:
        """The files of writers that have not committed, also of processes that are gone."""
        for name, size, modified in self._files():
            if name.startswith(_UNFINISHED):
                yield BlobInfo(name, size, modified)

    def drop_unfinished(self, before: datetime) -> None:
        """Removes what no writer has touched since `before`."""
        with storage_errors_are_typed():
            for one in self.unfinished():
                if one.modified < before:
                    (self._folder / one.digest).unlink(missing_ok=True)

    def _pieces(self, digest: str) -> Iterator[bytes]:
        """The content piece by piece; what comes is trusted only once the last piece has come without an error."""
        path, found = _path(self._folder, digest), hashlib.sha256()
        with storage_errors_are_typed():
            try:
                with open(path, "rb") as file:
                    while piece := file.read(_PIECE_BYTES):
                        found.update(piece)
                        yield piece
            except FileNotFoundError:
                raise StoreCorrupt(f"the blob {digest} is missing") from None
            except IsADirectoryError:
                raise StoreCorrupt(f"the blob {digest} is a folder, not a file") from None
        if DIGEST_PREFIX + found.hexdigest() != digest:
            raise StoreCorrupt(f"the blob {digest} has other content than its digest says")

    def _files(self) -> Iterator[tuple[str, int, datetime]]:
        with storage_errors_are_typed(), os.scandir(self._folder) as entries:
            for entry in entries:
                # Another process may have removed or renamed the file since it was listed.
                with suppress(FileNotFoundError):
                    found = entry.stat()
                    # A folder that somebody put here is no blob, whatever its name; nothing could read or remove it.
                    if stat.S_ISREG(found.st_mode):
                        yield entry.name, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC)


class FileWriter:
    """A temporary file that becomes a blob by fsync and rename."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
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
                os.fsync(self._file.fileno())
                os.replace(self._path, _path(self._folder, self.digest))
                self._path = None
                sync(self._folder)
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


def _path(folder: Path, digest: str) -> Path:
    name = digest.removeprefix(DIGEST_PREFIX)
    # A digest becomes a file name only here, whatever the caller was given.
    if not _NAME.fullmatch(name):
        raise ValueError("not a digest")
    return folder / name
