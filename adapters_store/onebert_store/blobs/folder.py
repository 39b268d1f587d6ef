"""Stores blobs as files of one folder, named by their hash; a rename commits, so no file is ever partial."""

import os
import stat
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from onebert_store.blobs.digests import DIGEST_PREFIX, digits_of, is_digits, verified
from onebert_store.blobs.protocol import BlobInfo
from onebert_store.blobs.staging import StagedFile, StagingFolder, files
from onebert_store.disk import storage_errors_are_typed, sync
from onebert_store.errors import StoreCorrupt

_PIECE_BYTES = 2**20


class FolderBlobs:
    """A BlobStore in a folder; opening it removes nothing, because processes may share it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        # Staged in the same folder, so that a rename commits.
        self._staging = StagingFolder(folder, max_bytes)
        folder.mkdir(parents=True, exist_ok=True)
        with storage_errors_are_typed():
            sync(folder.parent)

    def writer(self) -> StagedFile:
        return self._staging.writer(self._commit)

    def put(self, data: bytes) -> str:
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    def get(self, digest: str) -> bytes:
        return b"".join(self._pieces(digest))

    def get_local(self, digest: str) -> bytes | None:
        return self.get(digest)

    def verify(self, digest: str, stop: Callable[[], bool] = lambda: False) -> bool:
        return not any(stop() for _ in self._pieces(digest))

    def delete(self, digest: str) -> None:
        with storage_errors_are_typed():
            self._path(digest).unlink(missing_ok=True)

    def sync(self) -> None:
        with storage_errors_are_typed():
            sync(self._folder)

    def blobs(self) -> Iterator[BlobInfo]:
        for name, size, modified in files(self._folder):
            if is_digits(name):
                yield BlobInfo(DIGEST_PREFIX + name, size, modified)

    def unfinished(self) -> Iterator[BlobInfo]:
        return self._staging.unfinished()

    def drop_unfinished(self, before: datetime) -> None:
        self._staging.drop_unfinished(before)

    def _commit(self, staged: Path, digest: str) -> None:
        with storage_errors_are_typed():
            sync(staged)
            os.replace(staged, self._path(digest))
            sync(self._folder)

    def _path(self, digest: str) -> Path:
        return self._folder / digits_of(digest)

    def _pieces(self, digest: str) -> Iterator[bytes]:
        return verified(self._unverified(digest), digest, self._max_bytes)

    def _unverified(self, digest: str) -> Iterator[bytes]:
        with storage_errors_are_typed():
            path = self._path(digest)
            try:
                # Opening a pipe would wait for its writer, and reading a device might never end.
                if not stat.S_ISREG(path.stat().st_mode):
                    raise StoreCorrupt(f"the blob {digest} is not a regular file")
                with open(path, "rb") as file:
                    while piece := file.read(_PIECE_BYTES):
                        yield piece
            except FileNotFoundError:
                raise StoreCorrupt(f"the blob {digest} is missing") from None
