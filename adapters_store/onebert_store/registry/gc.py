"""Blobs that no version names: marked when that is seen, removed after a time of grace.

The grace is what makes a restored database harmless: the blobs of versions that an older database does not know, and
of versions deleted since, are still there, and `onebert store recover` makes versions of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, delete, insert, select

from onebert_store.registry.blobs import BlobInfo
from onebert_store.registry.database import ORPHANS, VERSIONS, reading, writing
from onebert_store.registry.store import Store

GRACE = timedelta(hours=24)
UNFINISHED_GRACE = timedelta(hours=1)
"""Nothing unfinished is removed sooner, whatever the grace: an upload may be writing to it."""


@dataclass(frozen=True)
class Orphan:
    """A blob that no version names, and since when that is known; None where it was not seen before."""

    blob: BlobInfo
    since: datetime | None


@dataclass(frozen=True)
class Swept:
    """What a sweep removed, and the orphans that it kept."""

    removed: tuple[BlobInfo, ...]
    kept: tuple[Orphan, ...]


def find_orphans(store: Store) -> list[Orphan]:
    """Every blob that no version names, by digest; one whose row is just being written may be among them."""
    # Listed first: a blob that is added after the listing is not looked for among the rows.
    blobs = list(store.blobs.blobs())
    with reading(store.database) as connection:
        named = set(connection.scalars(select(VERSIONS.c.digest)))
        since = {row.digest: row.since for row in connection.execute(select(ORPHANS))}
    found = [blob for blob in blobs if blob.digest not in named]
    return [Orphan(blob, _valid(since.get(blob.digest), blob)) for blob in sorted(found, key=lambda blob: blob.digest)]


def mark_orphans(store: Store) -> None:
    """Notes of every orphan that it is one now, if that is not known; removes nothing."""
    with store.blobs.sweeping():
        _mark(store, [orphan.blob for orphan in find_orphans(store) if orphan.since is None])


def sweep(store: Store, grace: timedelta = GRACE) -> Swept:
    """Marks orphans and removes those marked for longer than `grace`; may run beside the store's owner.

    Raises:
        StorageFull, StorageUnavailable: the sweep ended early; it can be repeated.
    """
    now = datetime.now(UTC)
    with store.blobs.sweeping():
        orphans = find_orphans(store)
        _mark(store, [orphan.blob for orphan in orphans if orphan.since is None])
        due = [orphan for orphan in orphans if now - (orphan.since or now) >= grace]
        for orphan in due:
            store.blobs.delete(orphan.blob.digest)
        with writing(store.database) as connection:
            _forget(connection, [orphan.blob.digest for orphan in due])
    store.blobs.drop_unfinished(now - max(grace, UNFINISHED_GRACE))
    kept = tuple(orphan for orphan in orphans if orphan not in due)
    return Swept(tuple(orphan.blob for orphan in due), kept)


def _valid(since: datetime | None, blob: BlobInfo) -> datetime | None:
    # A mark from before the bytes were written is of an earlier orphan of this digest: a database that was restored
    # may hold such a mark.
    return since if since and since >= blob.modified else None


def _mark(store: Store, blobs: Iterable[BlobInfo]) -> None:
    digests = [blob.digest for blob in blobs]
    if digests:
        now = datetime.now(UTC)
        with writing(store.database) as connection:
            _forget(connection, digests)
            connection.execute(insert(ORPHANS), [{"digest": digest, "since": now} for digest in digests])


def _forget(connection: Connection, digests: list[str]) -> None:
    for digest in digests:
        connection.execute(delete(ORPHANS).where(ORPHANS.c.digest == digest))
