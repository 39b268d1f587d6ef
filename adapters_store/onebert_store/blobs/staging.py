"""Digests of blobs, and temporary files for uploads: each is hashed while it is written, until a store takes it."""

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from onebert_store.disk import storage_errors_are_typed
from onebert_store.errors import StoreCorrupt, TooLarge

DIGEST_PREFIX = "sha256:"
_DIGITS = re.compile(r"[0-9a-f]{64}")


def digest_of(data: bytes) -> str:
    """Returns the digest of a blob with this content."""
    return DIGEST_PREFIX + hashlib.sha256(data).hexdigest()


def digits_of(digest: str) -> str:
    """Returns a digest's 64 digits, the name of its file or object; raises ValueError if the digest is malformed."""
    digits = digest.removeprefix(DIGEST_PREFIX)
    if not is_digits(digits):
        raise ValueError("not a digest")
    return digits


def is_digits(name: str) -> bool:
    """True if a file or object has a blob's name."""
    return bool(_DIGITS.fullmatch(name))


def verified(pieces: Iterable[bytes], digest: str, max_bytes: int) -> Iterator[bytes]:
    """A blob's pieces, to trust after the last; raises StoreCorrupt for another digest or over `max_bytes`."""
    hasher, size = hashlib.sha256(), 0
    for piece in pieces:
        hasher.update(piece)
        size += len(piece)
        if size > max_bytes:
            break
        yield piece
    if size > max_bytes or DIGEST_PREFIX + hasher.hexdigest() != digest:
        raise StoreCorrupt(f"the blob {digest} has other content than its digest says")


# Younger unfinished files are never removed, because an upload may be writing to them.
UNFINISHED_GRACE = timedelta(hours=1)

UNFINISHED = "tmp-"


@dataclass(frozen=True)
class BlobInfo:
    """A stored blob: `size` in bytes, `modified` in UTC."""

    digest: str
    size: int
    modified: datetime


class StagedFile:
    """An upload, hashed while it is written to a temporary file; leaving `with` discards it unless committed."""

    def __init__(self, folder: Path, max_bytes: int, store: Callable[[Path, str], None]) -> None:
        self._max_bytes = max_bytes
        self._store = store
        self._hash = hashlib.sha256()
        self._size = 0
        with storage_errors_are_typed():
            handle, name = tempfile.mkstemp(prefix=UNFINISHED, dir=folder)
        self._file = os.fdopen(handle, "w+b")
        self._path: Path | None = Path(name)

    @property
    def size(self) -> int:
        return self._size

    @property
    def digest(self) -> str:
        return DIGEST_PREFIX + self._hash.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Appends; raises TooLarge beyond the store's limit, StorageFull or StorageUnavailable."""
        if self._size + len(chunk) > self._max_bytes:
            raise TooLarge(f"a delta file has at most {self._max_bytes} bytes")
        with storage_errors_are_typed():
            self._file.write(chunk)
        self._hash.update(chunk)
        self._size += len(chunk)

    def read(self) -> bytes:
        with storage_errors_are_typed():
            self._file.flush()
            self._file.seek(0)
            return self._file.read()

    def commit(self) -> str:
        """Makes the bytes durable, or discards them; returns their digest. Replaces a damaged blob of the digest."""
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
        # The bytes are not needed any more, so a failing disk is not the caller's error. A sweep removes what is left.
        with suppress(OSError):
            if self._path is not None:
                path, self._path = self._path, None
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()


def files(folder: Path) -> Iterator[BlobInfo]:
    """Lists a folder's regular files; `digest` is the file name."""
    with storage_errors_are_typed(), os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
            except OSError as error:
                # Another process may have removed or renamed the file since it was listed; a link may be broken.
                if isinstance(error, FileNotFoundError) or entry.is_symlink():
                    continue
                raise
            # Folders, pipes and devices are not blobs, whatever their name.
            if stat.S_ISREG(status.st_mode):
                yield BlobInfo(entry.name, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
