"""Copies of blobs on this machine's disk, in front of an object store: bounded, verified, and never the only ones."""

import os
import threading
from contextlib import suppress
from pathlib import Path

from onebert_store.blobs.digests import digest_of, digits_of
from onebert_store.blobs.staging import files
from onebert_store.errors import OneBertError

_TEMPORARY = "new-"
_PARTS = 16
"""After every sixteenth of its bound a process counts the whole folder anew, for others may have written, too."""


class BlobCache:
    """A folder of copies, of which the least recently used go first; threads and processes may share it.

    Nothing here raises for what the disk does: a cache that cannot be read or written is an empty one.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Makes no folder before there is something to keep.

        Args:
            folder: where the copies are.
            max_bytes: what the copies take together at most; each further process may go over that by a sixteenth
                until it counts again. 0 keeps none.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        # Unknown, so that the first copy that is kept counts what is there.
        self._room = 0
        self._counting = threading.Lock()

    def get(self, digest: str) -> bytes | None:
        """The content of a blob, verified; None where there is no whole copy."""
        path = self._folder / digits_of(digest)
        try:
            # Opening a pipe would wait for its writer.
            data = path.read_bytes() if path.is_file() else b""
        except OSError:
            return None
        whole = digest_of(data) == digest
        with suppress(OSError):
            # The time of the last change says when a copy was last used: that of the last access is often not kept.
            if whole:
                os.utime(path)
            else:
                path.unlink(missing_ok=True)
        return data if whole else None

    def keep(self, digest: str, data: bytes) -> None:
        """Keeps a copy, unless it is larger than the bound or the disk refuses."""
        if len(data) > self._max_bytes:
            return
        path = self._folder / digits_of(digest)
        temporary = path.with_name(f"{_TEMPORARY}{path.name}-{os.getpid()}-{id(data)}")
        with suppress(OSError, OneBertError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._counting:
                self._make_room(len(data))
            try:
                # Not synced: after a power cut a copy that is not whole is seen as one, and fetched again.
                temporary.write_bytes(data)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def drop(self, digest: str) -> None:
        """Removes a copy if there is one."""
        with suppress(OSError):
            (self._folder / digits_of(digest)).unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        if size > self._room:
            found = sorted(files(self._folder), key=lambda file: file[2])
            free = self._max_bytes - sum(file[1] for file in found)
            for name, freed, _ in found:
                # A sixteenth more than is needed, so that not every new copy lists the folder.
                if free >= min(size + self._max_bytes // _PARTS, self._max_bytes):
                    break
                (self._folder / name).unlink(missing_ok=True)
                free += freed
            self._room = min(free, max(size, self._max_bytes // _PARTS))
        self._room -= size
