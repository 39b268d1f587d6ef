"""Content-addressed bytes: an interface that an object store fits, and a folder that implements it."""

import hashlib
import os
import re
import tempfile
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from onebert_store.disk import full_disk_is_typed, sync
from onebert_store.errors import StoreCorrupt, TooLarge

_NAME = re.compile(r"[0-9a-f]{64}")
_PREFIX = "sha256:"
_TEMPORARY = "tmp-"


class Staged(Protocol):
    """Bytes on their way into the store, hashed while written; leaving `with` discards what was not committed."""

    @property
    def size(self) -> int:
        """Bytes written so far."""

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the bytes written so far."""

    def write(self, chunk: bytes) -> None:
        """Appends; raises TooLarge past the store's limit, StorageFull where there is no room."""

    def read(self) -> bytes:
        """All bytes written so far."""

    def commit(self) -> str:
        """Makes the bytes durable under their digest and returns it; heals a damaged blob of the same digest."""

    def discard(self) -> None:
        """Drops the bytes; does nothing after a commit or a discard."""

    def __enter__(self) -> Self:
        """Returns itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discards."""


class BlobStore(Protocol):
    """Immutable bytes by digest; every method may be called from any thread."""

    def stage(self) -> Staged:
        """A place for bytes whose digest is not known yet."""

    def put(self, data: bytes) -> str:
        """Stages and commits; returns the digest."""

    def get(self, digest: str) -> bytes:
        """The bytes, verified; raises StoreCorrupt where they are missing or damaged."""

    def delete(self, digest: str) -> None:
        """Removes the blob if it is there."""

    def digests(self) -> Set[str]:
        """The digest of every blob."""


class FolderBlobs:
    """Blobs as files named by their hash; staged bytes are files beside them, so that a rename commits.

    Opening removes what a killed process left staged: a folder has one owner at a time.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        with full_disk_is_typed():
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)
        for path in folder.glob(f"{_TEMPORARY}*"):
            path.unlink()

    def stage(self) -> "StagedFile":
        """A temporary file in the same folder; raises StorageFull."""
        return StagedFile(self._folder, self._max_bytes)

    def put(self, data: bytes) -> str:
        """Stages and commits; returns the digest."""
        with self.stage() as staged:
            staged.write(data)
            return staged.commit()

    def get(self, digest: str) -> bytes:
        """The bytes, verified; raises StoreCorrupt where they are missing or damaged."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            raise StoreCorrupt(f"the blob {digest} is missing") from None
        if _PREFIX + hashlib.sha256(data).hexdigest() != digest:
            raise StoreCorrupt(f"the blob {digest} has other content than its digest says")
        return data

    def delete(self, digest: str) -> None:
        """Removes the blob if it is there."""
        self._path(digest).unlink(missing_ok=True)
        sync(self._folder)

    def digests(self) -> Set[str]:
        """The digest of every blob."""
        return {_PREFIX + path.name for path in self._folder.iterdir() if _NAME.fullmatch(path.name)}

    def _path(self, digest: str) -> Path:
        return _blob_path(self._folder, digest)


class StagedFile:
    """A temporary file that becomes a blob by fsync and rename."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._hash = hashlib.sha256()
        self._size = 0
        with full_disk_is_typed():
            handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=folder)
        self._file = os.fdopen(handle, "w+b")
        self._path: Path | None = Path(name)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the bytes written so far."""
        return _PREFIX + self._hash.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Appends; raises TooLarge past the store's limit, StorageFull where there is no room."""
        if self._size + len(chunk) > self._max_bytes:
            raise TooLarge(f"a delta file has at most {self._max_bytes} bytes")
        with full_disk_is_typed():
            self._file.write(chunk)
        self._hash.update(chunk)
        self._size += len(chunk)

    def read(self) -> bytes:
        """All bytes written so far."""
        with full_disk_is_typed():
            self._file.flush()
        self._file.seek(0)
        return self._file.read()

    def commit(self) -> str:
        """Makes the bytes durable under their digest and returns it; heals a damaged blob of the same digest.

        Raises:
            StorageFull: there is no room; the bytes are discarded, as on any other failure.
        """
        if self._path is None:
            raise ValueError("already committed or discarded")
        try:
            with full_disk_is_typed():
                self._file.flush()
                os.fsync(self._file.fileno())
                os.replace(self._path, _blob_path(self._folder, self.digest))
                self._path = None
                sync(self._folder)
        finally:
            self.discard()
        return self.digest

    def discard(self) -> None:
        """Drops the bytes; does nothing after a commit or a discard."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None
        # Closing flushes; that nobody wants these bytes any more makes a full disk no error.
        with suppress(OSError):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


def _blob_path(folder: Path, digest: str) -> Path:
    name = digest.removeprefix(_PREFIX)
    # A digest becomes a file name only here, whatever the caller was given.
    if not _NAME.fullmatch(name):
        raise ValueError("not a digest")
    return folder / name
