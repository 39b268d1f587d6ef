"""Blobs as objects of an S3-compatible bucket, named by their hash; an object is there whole or not at all."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from onebert_store.blobs.cache import BlobCache
from onebert_store.blobs.digests import DIGEST_PREFIX, digest_of, digits_of, is_digits, verified
from onebert_store.blobs.protocol import BlobInfo
from onebert_store.blobs.staging import UNFINISHED_GRACE, StagedFile, StagingFolder
from onebert_store.disk import storage_errors_are_typed
from onebert_store.errors import (
    BlobsAway,
    InvalidSettings,
    OneBertError,
    StorageFull,
    StorageUnavailable,
    StoreCorrupt,
    TooLarge,
)

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Where the environment may name an S3-compatible server; the first that is set is the one that counts."""

SILENCE_S = 5.0
"""After a silence that long the next one is not waited for: whoever asks within these seconds is refused at once."""

_CONNECT_TIMEOUT = timedelta(seconds=2)
_PAUSE, _LONGEST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=2)

_PIECE_BYTES = 2**20
_LISTED_TOGETHER = 1000

_STORE = "the store's bucket"
_SILENT = "kind: Timeout"
_FULL = ("status code: 507", "QuotaExceeded", "StorageFull")
# What obstore's message holds, and what is told of it: the message itself has addresses, and may have names of keys.
_REASONS = {
    # Of the machine's own service, which is asked where the environment has no credentials.
    "/latest/api/token": "no credentials for it were found",
    "NoSuchBucket": "there is no such bucket",
    "status code: 401": "the credentials are not accepted",
    "status code: 403": "the credentials may not do this",
    "status code: 4": "it refuses the request",
    "status code: 5": "it has an error of its own",
    "redirect": "it is in another region",
    "kind: Connect": "it cannot be reached",
    _SILENT: "it does not answer in time",
}


@dataclass(frozen=True)
class Patience:
    """How long a bucket is waited for.

    Attributes:
        silent: for how long it may be silent, an upload's own time included.
        request: for how long a request may take.
        retry: until when what failed is tried again, reckoned from the request's beginning.
        retries: how often at most.
    """

    silent: timedelta
    request: timedelta
    retry: timedelta
    retries: int


PROMPT = Patience(timedelta(seconds=20), timedelta(seconds=60), timedelta(seconds=10), 3)
"""For a server. 20 seconds of silence are enough for the largest file at 3.4 MB a second. Retries are over within a
second where nobody listens. A request that was silent for long is not tried again: those who wait for it are told, and
come again by themselves."""


def open_bucket(bucket: str, prefix: str, patience: Patience = PROMPT) -> S3Store:
    """A client of a bucket, which asks nothing yet; endpoint, region and credentials come from `AWS_…` variables.

    Args:
        bucket: its name.
        prefix: what all names in it begin with.
        patience: how long it is waited for.

    Raises:
        InvalidSettings: these variables are no settings of a bucket.
    """
    endpoint = next(filter(None, map(os.environ.get, ENDPOINTS)), "")
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                # A variable that says http:// means it; other clients of S3 take it so, too.
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": _CONNECT_TIMEOUT,
                "read_timeout": patience.silent,
                "timeout": patience.request,
            },
            retry_config={
                "max_retries": patience.retries,
                "retry_timeout": patience.retry,
                "backoff": {"init_backoff": _PAUSE, "max_backoff": _LONGEST_PAUSE, "base": 2},
            },
        )
    # The error's own words may hold what a variable says.
    except (BaseError, ValueError):
        raise InvalidSettings("the AWS_… variables of the bucket are incomplete, or one of them is not valid") from None


BUCKET_ERRORS = BaseError, FileNotFoundError
"""What obstore raises."""


def typed(error: Exception, bucket: str, missing: str | None = None) -> OneBertError:
    """What one of the `BUCKET_ERRORS` means, without its own words.

    Args:
        error: as obstore raised it.
        bucket: what the sentence calls the bucket.
        missing: the sentence for an object that is not there.

    Returns:
        StoreCorrupt where the object is not there and `missing` says so, StorageFull where the bucket has no room, and
        BlobsAway for all else: the bucket is away, slow, forbidden, or answers what is no answer.
    """
    said = str(error)
    if any(sign in said for sign in _FULL):
        return StorageFull(f"{bucket} has no room for this")
    if missing and isinstance(error, FileNotFoundError) and "NoSuchBucket" not in said:
        return StoreCorrupt(missing)
    reason = next((reason for sign, reason in _REASONS.items() if sign in said), "its answer is none")
    return BlobsAway(f"{bucket} does not work: {reason}")


class ObjectBlobs:
    """A BlobStore in a bucket, with copies of what was read or written lately on this machine's disk.

    An upload is staged in a local file while it is hashed, and goes to the bucket in one request. So the bucket never
    holds a part of a blob, or of a multipart upload: what is unfinished is in the local folder alone, which is made
    when the first upload comes.
    """

    def __init__(self, bucket: S3Store, staging: Path, cache: BlobCache, max_bytes: int) -> None:
        self._bucket = bucket
        self._cache = cache
        self._folder = staging
        self._staging = StagingFolder(staging, max_bytes)
        self._max_bytes = max_bytes
        self._silent_until = 0.0
        self._is_tidy = False

    def writer(self) -> StagedFile:
        """A local temporary file."""
        with storage_errors_are_typed():
            self._folder.mkdir(parents=True, exist_ok=True)
        if not self._is_tidy:
            # What was left by a process that was killed: sweeps of the store may run on another machine only.
            self._staging.drop_unfinished(datetime.now(UTC) - UNFINISHED_GRACE)
            self._is_tidy = True
        return self._staging.writer(self._commit)

    def put(self, data: bytes) -> str:
        """Sends the bytes as they are, without a temporary file; returns the digest."""
        if len(data) > self._max_bytes:
            raise TooLarge(f"a delta file has at most {self._max_bytes} bytes")
        digest = digest_of(data)
        self._send(data, digest)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes, verified; raises StoreCorrupt where they are missing or damaged."""
        data = self.get_local(digest)
        if data is None:
            data = b"".join(self._pieces(digest))
            self._cache.keep(digest, data)
        return data

    def get_local(self, digest: str) -> bytes | None:
        """The bytes of a whole copy on this machine; None where there is none."""
        return self._cache.get(digest)

    def verify(self, digest: str, stop: Callable[[], bool] = lambda: False) -> bool:
        """Reads the object in pieces, never a local copy; raises StoreCorrupt where it is missing or damaged."""
        return not any(stop() for _ in self._pieces(digest))

    def delete(self, digest: str) -> None:
        """Removes the object if it is there, durably."""
        with self._asking():
            obstore.delete(self._bucket, digits_of(digest))
        self._cache.drop(digest)

    def sync(self) -> None:
        """Does nothing: an answer of the bucket is durable."""

    def blobs(self) -> Iterator[BlobInfo]:
        """Every blob, in no order."""
        with self._asking():
            for objects in obstore.list(self._bucket, chunk_size=_LISTED_TOGETHER):
                for found in objects:
                    if is_digits(found["path"]):
                        yield BlobInfo(DIGEST_PREFIX + found["path"], found["size"], found["last_modified"])

    def unfinished(self) -> Iterator[BlobInfo]:
        """The local files of writers that have not committed, also of processes that are gone."""
        return self._staging.unfinished() if self._folder.is_dir() else iter(())

    def drop_unfinished(self, before: datetime) -> None:
        """Removes what no writer has touched since `before`."""
        if self._folder.is_dir():
            self._staging.drop_unfinished(before)

    def _commit(self, staged: Path, digest: str) -> None:
        with storage_errors_are_typed():
            data = staged.read_bytes()
        if digest_of(data) != digest:
            raise StorageUnavailable("this machine's disk gave back other bytes than were written")
        self._send(data, digest)

    def _send(self, data: bytes, digest: str) -> None:
        with self._asking():
            try:
                obstore.put(self._bucket, digits_of(digest), data, mode="create")
            except AlreadyExistsError:
                # Written again all the same, as a folder's file is: the object may be damaged; it may only be on its
                # way, by an upload that can still fail; and a mark of an orphan is older than the object from now on.
                obstore.put(self._bucket, digits_of(digest), data, mode="overwrite", use_multipart=False)
        self._cache.keep(digest, data)

    def _pieces(self, digest: str) -> Iterator[bytes]:
        return verified(self._unverified(digest), digest, self._max_bytes)

    def _unverified(self, digest: str) -> Iterator[bytes]:
        with self._asking(f"the blob {digest} is missing"):
            for piece in obstore.get(self._bucket, digits_of(digest)).stream(min_chunk_size=_PIECE_BYTES):
                yield bytes(piece)

    @contextmanager
    def _asking(self, missing: str | None = None) -> Iterator[None]:
        """Turns errors of the bucket into typed ones; a bucket that was silent a moment ago is not asked.

        Raises:
            StoreCorrupt, StorageFull, BlobsAway: see `typed`.
        """
        if time.monotonic() < self._silent_until:
            raise BlobsAway(f"{_STORE} does not work: it did not answer a moment ago")
        try:
            yield
        except BUCKET_ERRORS as error:
            if _SILENT in str(error):
                self._silent_until = time.monotonic() + SILENCE_S
            raise typed(error, _STORE, missing) from None
