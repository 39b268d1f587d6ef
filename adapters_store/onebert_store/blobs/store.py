"""A blob store: bytes named by their SHA-256, in a folder or in an object store."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from onebert_store.blobs.staging import UNFINISHED, BlobInfo, StagedFile, files, verified
from onebert_store.disk import storage_errors_are_typed


class BlobStore(ABC):
    """Immutable bytes by digest; thread-safe. Methods raise StorageUnavailable, or StorageFull if there is no room.

    `staging` is the folder for unfinished uploads; processes may share it.
    """

    def __init__(self, staging: Path, max_bytes: int) -> None:
        self._folder = staging
        self._max_bytes = max_bytes

    def writer(self) -> StagedFile:
        """Returns a writer for bytes whose digest is not known yet."""
        return StagedFile(self._folder, self._max_bytes, self._commit)

    @abstractmethod
    def put(self, data: bytes) -> str:
        """Stores the bytes durably and returns their digest."""

    def get(self, digest: str) -> bytes:
        """Reads and verifies a blob; raises StoreCorrupt if it is missing or damaged."""
        return b"".join(self._pieces(digest))

    @abstractmethod
    def get_local(self, digest: str) -> bytes | None:
        """Reads like `get` but without the network: None if the blob has to be fetched."""

    def verify(self, digest: str) -> None:
        """Reads a blob, never a copy, piece by piece; raises StoreCorrupt if it is missing or damaged."""
        for _ in self._pieces(digest):
            pass

    @abstractmethod
    def delete(self, digest: str) -> None:
        """Removes the blob if it exists; before `sync`, a power cut may bring it back."""

    @abstractmethod
    def sync(self) -> None: ...

    @abstractmethod
    def blobs(self) -> Iterator[BlobInfo]: ...

    def unfinished(self) -> Iterator[BlobInfo]:
        """Lists the files of uncommitted writers, also of processes that are gone; `digest` is the file name."""
        entries = files(self._folder) if self._folder.is_dir() else ()
        return (file for file in entries if file.digest.startswith(UNFINISHED))

    def drop_unfinished(self, before: datetime) -> None:
        """Removes unfinished files last modified before `before`."""
        with storage_errors_are_typed():
            for file in self.unfinished():
                if file.modified < before:
                    (self._folder / file.digest).unlink(missing_ok=True)

    def _pieces(self, digest: str) -> Iterator[bytes]:
        return verified(self._unverified(digest), digest, self._max_bytes)

    @abstractmethod
    def _commit(self, staged: Path, digest: str) -> None:
        """Stores a whole staged file, which it may move away."""

    @abstractmethod
    def _unverified(self, digest: str) -> Iterator[bytes]:
        """Yields the stored bytes in pieces; raises StoreCorrupt if the blob is missing."""
