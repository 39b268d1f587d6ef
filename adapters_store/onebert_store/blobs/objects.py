"""Objects under a prefix of a bucket by their names: for files that people read, which no digest names."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import obstore
from obstore.exceptions import AlreadyExistsError

from onebert_store.blobs.bucket import BUCKET_ERRORS, Patience, open_bucket, typed

# Whoever writes here has worked for an hour and waits for nobody: a bucket that is away for minutes ends nothing, and
# a large object may take its time.
_PATIENT = Patience(timedelta(minutes=10), timedelta(minutes=10), timedelta(minutes=5), 10_000)


class Objects:
    """Files of a bucket, each written once and whole.

    Every method raises BlobsAway where the bucket does not work, and StorageFull where it has no room.

    Args:
        bucket: its name.
        prefix: what all names in it begin with; names here go without it.
        called: what messages call the bucket.

    Raises:
        InvalidSettings: the `AWS_…` variables are no settings of a bucket.
    """

    def __init__(self, bucket: str, prefix: str, called: str) -> None:
        self._called = called
        self._bucket = open_bucket(bucket, prefix)
        self._patient = open_bucket(bucket, prefix, _PATIENT)

    def names(self) -> list[str]:
        """Every object, in no order."""
        with self._asking():
            return [found["path"] for objects in obstore.list(self._bucket) for found in objects if found["path"]]

    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None where there is none."""
        with self._asking():
            try:
                return bytes(obstore.get(self._bucket, name).bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def create(self, name: str, data: bytes | memoryview) -> None:
        """Has an object there from now on: these bytes, or those that were there before, which stay as they are.

        One request, which the bucket carries out as a whole or not at all.

        Args:
            name: of the object.
            data: its bytes.
        """
        # A loop of its own for the while, for a call that waits without one hears no Ctrl-C.
        with self._asking():
            asyncio.run(self._create(name, data))

    def end(self, name: str, size: int) -> bytes:
        """The last bytes of an object, so many."""
        with self._asking():
            return bytes(obstore.get(self._bucket, name, options={"range": {"suffix": size}}).bytes())

    async def _create(self, name: str, data: bytes | memoryview) -> None:
        try:
            await obstore.put_async(self._patient, name, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            # S3 says so of an object that is on its way, too, whose upload may still fail: then it is not there.
            await obstore.head_async(self._patient, name)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except BUCKET_ERRORS as error:
            raise typed(error, self._called) from None
