"""Stores blobs as files of one folder, named by their hash; a rename commits, so no file is ever partial."""

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from onebert_store.blobs.staging import DIGEST_PREFIX, BlobInfo, digits_of, files, is_digits
from onebert_store.blobs.store import BlobStore
from onebert_store.disk import storage_errors_are_typed, sync
from onebert_store.errors import StoreCorrupt

_PIECE_BYTES = 2**20


class FolderBlobs(BlobStore):
    """Blobs in a folder that processes may share; it also holds unfinished uploads, so that a rename commits."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        super().__init__(folder, max_bytes)
        folder.mkdir(parents=True, exist_ok=True)
        with storage_errors_are_typed():
            sync(folder.parent)

    def put(self, data: bytes) -> str:
        with self.writer() as writer:
            writer.write(data)
            return writer.commit()

    def get_local(self, digest: str) -> bytes | None:
        return self.get(digest)

    def delete(self, digest: str) -> None:
        with storage_errors_are_typed():
            self._path(digest).unlink(missing_ok=True)

    def sync(self) -> None:
        with storage_errors_are_typed():
            sync(self._folder)

    def blobs(self) -> Iterator[BlobInfo]:
        return (
            replace(file, digest=DIGEST_PREFIX + file.digest) for file in files(self._folder) if is_digits(file.digest)
        )

    def _commit(self, staged: Path, digest: str) -> None:
        with storage_errors_are_typed():
            sync(staged)
            os.replace(staged, self._path(digest))
            sync(self._folder)

    def _path(self, digest: str) -> Path:
        return self._folder / digits_of(digest)

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
