"""The protocol of a blob store: bytes named by their SHA-256, in a folder or in an object store."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self


@dataclass(frozen=True)
class BlobInfo:
    """A stored blob: `size` in bytes, `modified` in UTC."""

    digest: str
    size: int
    modified: datetime


class BlobWriter(Protocol):
    """An upload that is hashed while it is written; leaving `with` discards it unless it was committed."""

    @property
    def size(self) -> int: ...

    @property
    def digest(self) -> str: ...

    def write(self, chunk: bytes) -> None:
        """Appends; raises TooLarge beyond the store's limit, StorageFull or StorageUnavailable."""

    def read(self) -> bytes: ...

    def commit(self) -> str:
        """Makes the bytes durable and returns their digest; replaces a damaged blob of the same digest."""

    def discard(self) -> None:
        """Drops the bytes; does nothing after a commit or a discard."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BlobStore(Protocol):
    """Immutable bytes by digest; thread-safe. Methods raise StorageUnavailable, or StorageFull if there is no room."""

    def writer(self) -> BlobWriter:
        """Returns a writer for bytes whose digest is not known yet."""

    def put(self, data: bytes) -> str:
        """Stores the bytes durably and returns their digest."""

    def get(self, digest: str) -> bytes:
        """Reads and verifies a blob; raises StoreCorrupt if it is missing or damaged."""

    def get_local(self, digest: str) -> bytes | None:
        """Reads like `get` but without the network: None if the blob has to be fetched."""

    def verify(self, digest: str, stop: Callable[[], bool] = lambda: False) -> bool:
        """Reads a blob piece by piece; raises StoreCorrupt if it is missing or damaged.

        Calls `stop` after each piece, which ends the reading if it returns True. Returns True if the blob was read to
        its end.
        """

    def delete(self, digest: str) -> None:
        """Removes the blob if it exists; before `sync`, a power cut may bring it back."""

    def sync(self) -> None: ...

    def blobs(self) -> Iterator[BlobInfo]: ...

    def unfinished(self) -> Iterator[BlobInfo]:
        """Lists the files of uncommitted writers, also of processes that are gone; `digest` is the file name."""

    def drop_unfinished(self, before: datetime) -> None:
        """Removes unfinished files last modified before `before`."""
