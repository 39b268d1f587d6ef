"""Reads and writes named objects under a prefix of a bucket: files for people, not blobs."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import obstore
from obstore.exceptions import AlreadyExistsError

from onebert_store.blobs.bucket import BUCKET_ERRORS, Patience, open_bucket, typed

# The caller has worked for an hour and nobody waits for it: a bucket that is away for minutes must not end the job, and
# a large object may take its time.
_PATIENT = Patience(timedelta(minutes=10), timedelta(minutes=10), timedelta(minutes=5), 10_000)


class Objects:
    """Objects under a prefix of a bucket, each written once and whole; names are without the prefix.

    Every method raises BlobsAway if the bucket fails, and StorageFull if it has no room; `called` names the bucket in
    messages. The constructor raises InvalidSettings if the `AWS_…` variables are not valid.
    """

    def __init__(self, bucket: str, prefix: str, called: str) -> None:
        self._called = called
        self._bucket = open_bucket(bucket, prefix)
        self._patient = open_bucket(bucket, prefix, _PATIENT)

    def names(self) -> list[str]:
        with self._asking():
            return [entry["path"] for objects in obstore.list(self._bucket) for entry in objects if entry["path"]]

    def read(self, name: str) -> bytes | None:
        """Reads an object; None if it does not exist."""
        with self._asking():
            try:
                return bytes(obstore.get(self._bucket, name).bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def create(self, name: str, data: bytes | memoryview) -> None:
        """Writes an object in one atomic request; an object that exists keeps its content."""
        # Runs its own event loop, because a blocking call does not notice Ctrl-C.
        with self._asking():
            asyncio.run(self._create(name, data))

    def end(self, name: str, size: int) -> bytes:
        with self._asking():
            return bytes(obstore.get(self._bucket, name, options={"range": {"suffix": size}}).bytes())

    async def _create(self, name: str, data: bytes | memoryview) -> None:
        try:
            await obstore.put_async(self._patient, name, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            # S3 also reports an object whose upload is still running and may fail; `head` raises if it does not exist.
            await obstore.head_async(self._patient, name)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except BUCKET_ERRORS as error:
            raise typed(error, self._called) from None
