"""Stores blobs as objects of an S3-compatible bucket, named by their hash; an object is there whole or not at all."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from onebert_store.blobs.cache import BlobCache
from onebert_store.blobs.staging import (
    DIGEST_PREFIX,
    UNFINISHED_GRACE,
    BlobInfo,
    StagedFile,
    digest_of,
    digits_of,
    is_digits,
)
from onebert_store.blobs.store import BlobStore
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

# Environment variables that may name an S3-compatible server; the first one that is set counts.
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

# Seconds after a timeout in which further requests fail at once instead of waiting for another timeout.
SILENCE_S = 5.0

_CONNECT_TIMEOUT = timedelta(seconds=2)
_PAUSE, _LONGEST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=2)

_PIECE_BYTES = 2**20
_LISTED_TOGETHER = 1000

_STORE = "the store's bucket"
_SILENT = "kind: Timeout"
_FULL = ("status code: 507", "QuotaExceeded", "StorageFull")
# Parts of obstore's message and the reason shown instead: the message contains addresses, and may contain key names.
_REASONS = {
    # The machine's metadata service, which is asked if the environment has no credentials.
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
    """Time limits for requests to a bucket.

    Attributes:
        silent: longest silence, including the time an upload takes.
        retry: failed requests are retried until this long after the first attempt.
    """

    silent: timedelta
    request: timedelta
    retry: timedelta
    retries: int


# Limits for a server.
# 20 seconds of silence are enough for the largest file at 3.4 MB/s. If nothing listens, the retries are over within a
# second. A request that was silent for long is not retried: its callers get an error and retry themselves.
PROMPT = Patience(timedelta(seconds=20), timedelta(seconds=60), timedelta(seconds=10), 3)


def open_bucket(bucket: str, prefix: str, patience: Patience = PROMPT) -> S3Store:
    """Makes a client, without a request, from the `AWS_…` variables; raises InvalidSettings if these are not valid."""
    endpoint = next(filter(None, map(os.environ.get, ENDPOINTS)), "")
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                # Plain http only if the variable asks for it, as in other S3 clients.
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
    # The error's own message may contain a variable's value.
    except (BaseError, ValueError):
        raise InvalidSettings("the AWS_… variables of the bucket are incomplete, or one of them is not valid") from None


# The exceptions that obstore raises.
BUCKET_ERRORS = BaseError, FileNotFoundError


def typed(error: Exception, bucket: str, missing: str | None = None) -> OneBertError:
    """Converts one of the `BUCKET_ERRORS`, without its message; `bucket` is the bucket's name in the new message.

    Returns StoreCorrupt with the message `missing`, if given and the object does not exist, StorageFull if the bucket
    has no room, and otherwise BlobsAway: the bucket is away, slow, forbidden, or its reply is not S3.
    """
    message = str(error)
    if any(sign in message for sign in _FULL):
        return StorageFull(f"{bucket} has no room for this")
    if missing and isinstance(error, FileNotFoundError) and "NoSuchBucket" not in message:
        return StoreCorrupt(missing)
    reason = next((reason for sign, reason in _REASONS.items() if sign in message), "its reply is not S3")
    return BlobsAway(f"{bucket} does not work: {reason}")


class ObjectBlobs(BlobStore):
    """Blobs in a bucket, with a local cache of blobs read or written lately.

    An upload is hashed into a local file and then sent in one request, so the bucket never holds parts of blobs or of
    multipart uploads. The first upload creates the local folder for unfinished files.
    """

    def __init__(self, bucket: S3Store, staging: Path, cache: BlobCache, max_bytes: int) -> None:
        super().__init__(staging, max_bytes)
        self._bucket = bucket
        self._cache = cache
        self._silent_until = 0.0
        self._is_tidy = False

    def writer(self) -> StagedFile:
        with storage_errors_are_typed():
            self._folder.mkdir(parents=True, exist_ok=True)
        if not self._is_tidy:
            # Removes files of killed processes: sweeps of the store may run on other machines only.
            self.drop_unfinished(datetime.now(UTC) - UNFINISHED_GRACE)
            self._is_tidy = True
        return super().writer()

    def put(self, data: bytes) -> str:
        if len(data) > self._max_bytes:
            raise TooLarge(f"a delta file has at most {self._max_bytes} bytes")
        digest = digest_of(data)
        self._send(data, digest)
        return digest

    def get(self, digest: str) -> bytes:
        data = self.get_local(digest)
        if data is None:
            data = super().get(digest)
            self._cache.keep(digest, data)
        return data

    def get_local(self, digest: str) -> bytes | None:
        return self._cache.get(digest)

    def delete(self, digest: str) -> None:
        with self._asking():
            obstore.delete(self._bucket, digits_of(digest))
        self._cache.drop(digest)

    def sync(self) -> None:
        """Does nothing: a completed request is durable."""

    def blobs(self) -> Iterator[BlobInfo]:
        with self._asking():
            for objects in obstore.list(self._bucket, chunk_size=_LISTED_TOGETHER):
                for entry in objects:
                    if is_digits(entry["path"]):
                        yield BlobInfo(DIGEST_PREFIX + entry["path"], entry["size"], entry["last_modified"])

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
                # Overwrite, as a folder does: the object may be damaged; it may belong to an upload that can still
                # fail; and the new time makes an orphan's mark older than the object.
                obstore.put(self._bucket, digits_of(digest), data, mode="overwrite", use_multipart=False)
        self._cache.keep(digest, data)

    def _unverified(self, digest: str) -> Iterator[bytes]:
        with self._asking(f"the blob {digest} is missing"):
            for piece in obstore.get(self._bucket, digits_of(digest)).stream(min_chunk_size=_PIECE_BYTES):
                yield bytes(piece)

    @contextmanager
    def _asking(self, missing: str | None = None) -> Iterator[None]:
        """Types the bucket's errors; raises BlobsAway at once if the bucket timed out within SILENCE_S."""
        if time.monotonic() < self._silent_until:
            raise BlobsAway(f"{_STORE} does not work: it did not answer a moment ago")
        try:
            yield
        except BUCKET_ERRORS as error:
            if _SILENT in str(error):
                self._silent_until = time.monotonic() + SILENCE_S
            raise typed(error, _STORE, missing) from None
