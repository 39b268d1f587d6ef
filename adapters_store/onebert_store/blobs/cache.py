"""Local copies of blobs in front of an object store: bounded, verified, and never the only copy."""

import os
import threading
from contextlib import suppress
from pathlib import Path

from onebert_store.blobs.staging import digest_of, digits_of, files
from onebert_store.errors import OneBertError

_TEMPORARY = "new-"
# A process recounts the folder after writing 1/16 of the bound, because other processes write to it as well.
_PARTS = 16


class BlobCache:
    """A folder of copies that evicts the least recently used; threads and processes may share it.

    Disk errors are never raised: a cache that cannot be read or written acts as an empty one. The first copy creates
    the folder. `max_bytes` limits all copies together, 0 keeps none; each further process may exceed it by 1/16 before
    it recounts.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        # Zero, so that the first copy counts what the folder holds.
        self._room = 0
        self._counting = threading.Lock()

    def get(self, digest: str) -> bytes | None:
        """Reads a blob and verifies it; None without an intact copy."""
        path = self._folder / digits_of(digest)
        try:
            # Opening a pipe would wait for its writer.
            data = path.read_bytes() if path.is_file() else b""
        except OSError:
            return None
        intact = digest_of(data) == digest
        with suppress(OSError):
            # Last use is stored as the modification time, because many file systems do not keep access times.
            if intact:
                os.utime(path)
            else:
                path.unlink(missing_ok=True)
        return data if intact else None

    def keep(self, digest: str, data: bytes) -> None:
        if len(data) > self._max_bytes:
            return
        path = self._folder / digits_of(digest)
        temporary = path.with_name(f"{_TEMPORARY}{path.name}-{os.getpid()}-{id(data)}")
        with suppress(OSError, OneBertError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._counting:
                self._make_room(len(data))
            try:
                # Not synced: after a power cut, `get` detects a damaged copy and the blob is fetched again.
                temporary.write_bytes(data)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def drop(self, digest: str) -> None:
        with suppress(OSError):
            (self._folder / digits_of(digest)).unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        if size > self._room:
            copies = sorted(files(self._folder), key=lambda file: file.modified)
            free = self._max_bytes - sum(file.size for file in copies)
            for file in copies:
                # Free 1/16 more than needed, so that not every new copy lists the folder.
                if free >= min(size + self._max_bytes // _PARTS, self._max_bytes):
                    break
                (self._folder / file.digest).unlink(missing_ok=True)
                free += file.size
            self._room = min(free, max(size, self._max_bytes // _PARTS))
        self._room -= size
