"""What the registry asks of a blob store: bytes named by their SHA-256, in a folder or in an object store."""

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
    """Bytes on their way into the store, hashed while they are written; leaving `with` drops what is not committed."""

    @property
    def size(self) -> int:
        """Bytes written so far."""

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of the bytes written so far."""

    def write(self, chunk: bytes) -> None:
        """Appends; raises TooLarge past the store's limit, StorageFull or StorageUnavailable."""

    def read(self) -> bytes:
        """All bytes written so far."""

    def commit(self) -> str:
        """Makes the bytes durable under their digest and returns it; replaces a damaged blob of the same digest."""

    def discard(self) -> None:
        """Drops the bytes; does nothing after a commit or a discard."""

    def __enter__(self) -> Self:
        """Returns itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discards."""


class BlobStore(Protocol):
    """Immutable bytes by digest; every method may be called from any thread.

    Every method raises StorageUnavailable where the storage fails, and StorageFull where it has no room.
    """

    def writer(self) -> BlobWriter:
        """Takes bytes whose digest is not known yet."""

    def put(self, data: bytes) -> str:
        """Writes and commits; returns the digest."""

    def get(self, digest: str) -> bytes:
        """The bytes, verified; raises StoreCorrupt where they are missing or damaged."""

    def get_local(self, digest: str) -> bytes | None:
        """As `get`, without a network: None where the bytes have to be fetched."""

    def verify(self, digest: str, stop: Callable[[], bool] = lambda: False) -> bool:
        """Reads the blob in pieces, never whole; raises StoreCorrupt where it is missing or damaged.

        Args:
            digest: names the blob.
            stop: asked after each piece; true ends the reading.

        Returns:
            Whether the blob was read to its end.
        """

    def delete(self, digest: str) -> None:
        """Removes the blob if it is there; until `sync`, a power cut may bring it back."""

    def sync(self) -> None:
        """Makes all removals so far durable."""

    def blobs(self) -> Iterator[BlobInfo]:
        """Every blob, in no order."""

    def unfinished(self) -> Iterator[BlobInfo]:
        """Files of writers that have not committed, also of processes that are gone; `digest` is a file's name."""

    def drop_unfinished(self, before: datetime) -> None:
        """Removes what no writer has touched since `before`."""
