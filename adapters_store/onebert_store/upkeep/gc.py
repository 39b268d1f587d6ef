"""Removes orphans, blobs that no version names: a sweep marks an orphan, and removes it after a grace period.

The grace makes a restored database harmless: blobs of versions that the older database does not know, and of versions
deleted since the backup, still exist. `onebert store recover` makes versions of them.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, delete, insert, select

from onebert_store.blobs.staging import UNFINISHED_GRACE, BlobInfo
from onebert_store.errors import OneBertError
from onebert_store.registry.database import ORPHANS, VERSIONS
from onebert_store.registry.dialects.database import Lock
from onebert_store.registry.store import Store

GRACE = timedelta(hours=24)

# Orphans per batch; uploads wait while a sweep handles one batch.
BATCH_BLOBS = 50
# Seconds between batches, so that waiting uploads get in; taking the lock again at once would keep them out.
PAUSE_S = 0.01


@dataclass(frozen=True)
class Orphan:
    """A blob that no version names, and the time it was first seen; None if it is new."""

    blob: BlobInfo
    since: datetime | None


@dataclass(frozen=True)
class Swept:
    """The blobs that a sweep removed, the orphans that are left, and the error that ended the sweep early, if any."""

    removed: tuple[BlobInfo, ...]
    waiting: tuple[Orphan, ...]
    failure: OneBertError | None = None


def find_orphans(store: Store) -> list[Orphan]:
    """Lists the blobs that no version names, by digest; may include a blob whose row is being written."""
    # List blobs before rows: a blob that is added in between is then not mistaken for an orphan.
    blobs = sorted(store.blobs.blobs(), key=lambda blob: blob.digest)
    return _orphans_among(store, blobs, select(VERSIONS.c.digest), select(ORPHANS))


def sweep(store: Store, grace: timedelta = GRACE) -> Swept:
    """Marks orphans and removes those marked for longer than `grace`; may run beside the store's owner.

    Uploads wait for one batch at most. The sweep queries each batch again while uploads are locked out, so a blob that
    a version has come to name stays. If the storage fails midway, `Swept.failure` has the error and the sweep can be
    repeated; an error in the listing is raised, and nothing was removed.
    """
    now = datetime.now(UTC)
    orphans = find_orphans(store)
    under_way = _Sweep(store, now, now - grace, {orphan.blob.digest: orphan for orphan in orphans}, [])
    failure = None
    try:
        for start in range(0, len(orphans), BATCH_BLOBS):
            if start:
                time.sleep(PAUSE_S)
            under_way.take([orphan.blob for orphan in orphans[start : start + BATCH_BLOBS]])
        store.blobs.drop_unfinished(now - max(grace, UNFINISHED_GRACE))
    except OneBertError as error:
        failure = error
    return Swept(tuple(under_way.removed), tuple(under_way.waiting.values()), failure)


@dataclass(frozen=True)
class _Sweep:
    """A running sweep; `waiting` and `removed` stay correct, whichever step fails; `before` is the latest mark due."""

    store: Store
    now: datetime
    before: datetime
    waiting: dict[str, Orphan]
    removed: list[BlobInfo]

    def take(self, blobs: list[BlobInfo]) -> None:
        digests = [blob.digest for blob in blobs]
        with self.store.database.sweeping() as lock:
            named = select(VERSIONS.c.digest).where(VERSIONS.c.digest.in_(digests))
            marks = select(ORPHANS).where(ORPHANS.c.digest.in_(digests))
            orphans = _orphans_among(self.store, blobs, named, marks)
            for digest in set(digests).difference(orphan.blob.digest for orphan in orphans):
                del self.waiting[digest]
            due = [orphan.blob for orphan in orphans if (orphan.since or self.now) <= self.before]
            # First, so that a full disk has room for the marks.
            self._remove(due, lock)
            _mark(self.store, [orphan.blob for orphan in orphans if orphan.since is None and orphan.blob not in due])

    def _remove(self, due: list[BlobInfo], lock: Lock) -> None:
        gone: list[str] = []
        try:
            for blob in due:
                lock.check()
                self.store.blobs.delete(blob.digest)
                gone.append(blob.digest)
                self.removed.append(blob)
                del self.waiting[blob.digest]
        finally:
            if gone:
                with self.store.database.writing() as connection:
                    _forget(connection, gone)
                self.store.blobs.sync()


def _orphans_among(store: Store, blobs: list[BlobInfo], named: Select[Any], marks: Select[Any]) -> list[Orphan]:
    """Returns the blobs whose digest is not in the query `named`, each with its time from the query `marks`."""
    with store.database.reading() as connection:
        digests = set(connection.scalars(named))
        since = {row.digest: row.since for row in connection.execute(marks)}
    return [Orphan(blob, _valid(since.get(blob.digest), blob)) for blob in blobs if blob.digest not in digests]


def _valid(since: datetime | None, blob: BlobInfo) -> datetime | None:
    # A mark older than the file belongs to an earlier orphan with this digest; a restored database may hold one.
    return since if since and since >= blob.modified else None


def _mark(store: Store, blobs: Iterable[BlobInfo]) -> None:
    digests = [blob.digest for blob in blobs]
    if digests:
        now = datetime.now(UTC)
        with store.database.writing() as connection:
            _forget(connection, digests)
            connection.execute(insert(ORPHANS), [{"digest": digest, "since": now} for digest in digests])


def _forget(connection: Connection, digests: list[str]) -> None:
    connection.execute(delete(ORPHANS).where(ORPHANS.c.digest.in_(digests)))
