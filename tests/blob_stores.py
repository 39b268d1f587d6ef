"""A location of blobs in tests, in a folder or in a bucket, and what tests do there behind the blob store's back."""

from pathlib import Path

import obstore

from onebert_store.blobs.bucket import ObjectBlobs, open_bucket
from onebert_store.blobs.cache import BlobCache
from onebert_store.blobs.folder import FolderBlobs
from onebert_store.blobs.store import BlobStore


class FolderLocation:
    """A folder; staged files are in it, too."""

    def __init__(self, folder: Path) -> None:
        self.staging = folder / "blobs"

    def open(self, max_bytes: int) -> BlobStore:
        return FolderBlobs(self.staging, max_bytes)

    def names(self) -> set[str]:
        return {path.name for path in self.staging.iterdir() if not path.name.startswith("tmp-")}

    def write(self, name: str, content: bytes) -> None:
        (self.staging / name).write_bytes(content)


class BucketLocation:
    """A bucket's prefix; staged files are in a folder of this machine."""

    def __init__(self, folder: Path, bucket: str, prefix: str) -> None:
        self.staging = folder / "staging"
        self.staging.mkdir(exist_ok=True)
        self.client = open_bucket(bucket, prefix)

    def open(self, max_bytes: int, cache: BlobCache | None = None) -> BlobStore:
        return ObjectBlobs(self.client, self.staging, cache or BlobCache(self.staging / "none", 0), max_bytes)

    def names(self) -> set[str]:
        return {entry["path"] for entry in obstore.list(self.client).collect()}

    def write(self, name: str, content: bytes) -> None:
        obstore.put(self.client, name, content)
