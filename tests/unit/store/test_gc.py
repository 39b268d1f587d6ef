"""Blobs that no version has: marked, kept for a time of grace, and back again if their database is."""

import errno
import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from onebert_store.errors import StorageUnavailable
from onebert_store.file.format import dumps, loads
from onebert_store.registry.database import ORPHANS
from onebert_store.registry.registry import Registry
from onebert_store.upkeep import gc
from stores import digests
from tiny_delta import make_delta

DAY = timedelta(hours=24)


@pytest.fixture
def registry(store):
    return Registry(store)


def put(store, seed):
    """A blob without a version, written three days ago."""
    digest = store.blobs.put(dumps(make_delta(seed)))
    path = blob_path(store, digest)
    before = (datetime.now(UTC) - 3 * DAY).timestamp()
    os.utime(path, (before, before))
    return digest


def blob_path(store, digest):
    return store.blobs._folder / digest.removeprefix("sha256:")


def age_marks(store, by):
    """As if every mark had been made so much earlier."""
    with store.database.writing() as connection:
        connection.execute(ORPHANS.update().values(since=datetime.now(UTC) - by))


def test_marked_blobs_go_after_the_grace(store, registry):
    orphan, version = put(store, 2), registry.entries()[0]
    gc.sweep(store)
    age_marks(store, DAY - timedelta(minutes=1))
    assert gc.sweep(store).removed == ()
    age_marks(store, DAY + timedelta(minutes=1))
    late = put(store, 3)
    swept = gc.sweep(store)
    assert [blob.digest for blob in swept.removed] == [orphan]
    assert digests(store) == {version.digest, late}
    assert gc.sweep(store, timedelta(0)).removed[0].digest == late
    assert gc.find_orphans(store) == []


def test_the_blob_of_a_deleted_version_is_kept_since_its_deletion(store, registry):
    record, _ = registry.add("spam", make_delta(2))
    registry.delete_version("spam", 2)
    (orphan,) = gc.find_orphans(store)
    assert orphan.blob.digest == record.digest
    assert datetime.now(UTC) - orphan.since < timedelta(minutes=1)
    age_marks(store, 2 * DAY)
    # The mark now lies before the bytes were written, as one of an older database would: it does not count.
    assert gc.sweep(store).removed == ()


def test_a_blob_that_has_a_version_again_loses_its_mark(store, registry):
    orphan = put(store, 2)
    gc.sweep(store)
    age_marks(store, 2 * DAY)
    assert registry.add("ham", make_delta(2))[0].digest == orphan
    assert gc.sweep(store).removed == ()
    registry.add("ham", make_delta(3))
    registry.move_alias("ham", "live", 2, 1)
    registry.delete_version("ham", 1)
    assert gc.sweep(store).removed == ()


def test_unfinished_uploads_go_when_nobody_has_written_to_them_for_an_hour(store):
    with store.blobs.writer() as young, store.blobs.writer() as old:
        then = (datetime.now(UTC) - timedelta(hours=2)).timestamp()
        os.utime(old._path, (then, then))
        gc.sweep(store, timedelta(0))
        assert [blob.digest for blob in store.blobs.unfinished()] == [young._path.name]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_among_the_blobs_stays_and_ends_no_sweep(store, make):
    """Both come before the orphan in the order of names: one is named like a digest, one like an unfinished upload."""
    orphan = put(store, 2)
    then = (datetime.now(UTC) - timedelta(hours=2)).timestamp()
    others = [store.blobs._folder / name for name in ("0" * 64, "tmp-other")]
    for other in others:
        make(other)
        os.utime(other, (then, then))
    swept = gc.sweep(store, timedelta(0))
    assert ([blob.digest for blob in swept.removed], swept.waiting, swept.failure) == ([orphan], (), None)
    assert all(other.exists() for other in others)


def test_an_upload_gets_in_between_two_batches_and_what_it_needs_survives(store, registry, monkeypatch):
    """The upload begins while the first batch is being removed, and is stored before the last one is looked at."""
    monkeypatch.setattr(gc, "BATCH_BLOBS", 2)
    orphans = sorted(put(store, seed) for seed in range(2, 8))
    needed = next(delta for delta in map(make_delta, range(2, 8)) if delta.digest == orphans[-1])
    uploads = []
    remove = Path.unlink
    with ThreadPoolExecutor(1) as uploader:

        def begin_and_remove(path, *arguments, **options):
            if not uploads:
                uploads.append(uploader.submit(registry.add, "ham", needed))
            remove(path, *arguments, **options)

        monkeypatch.setattr(Path, "unlink", begin_and_remove)
        # The pause between batches, until the upload is done; it would never be if the lock were still held.
        monkeypatch.setattr(time, "sleep", lambda _: uploads[0].result(timeout=180))
        swept = gc.sweep(store, timedelta(0))
    assert {blob.digest for blob in swept.removed} == set(orphans[:-1])
    assert (swept.waiting, swept.failure) == ((), None)
    assert loads(registry.read(registry.version("ham", 1))).digest == needed.digest


def test_a_sweep_ended_halfway_can_be_repeated(store, monkeypatch):
    """The disk becomes read-only with the 71st removal, in the second batch."""
    orphans = {put(store, seed) for seed in range(2, 122)}
    gc.sweep(store)
    removals = itertools.count(1)
    remove = Path.unlink

    def refuse_from_71(path, *arguments, **options):
        if next(removals) > 70:
            raise OSError(errno.EROFS, "Read-only file system")
        remove(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse_from_71)
        swept = gc.sweep(store, timedelta(0))
    assert isinstance(swept.failure, StorageUnavailable)
    gone = {blob.digest for blob in swept.removed}
    left = orphans & digests(store)
    assert (len(gone), gone | left, gone & left) == (70, orphans, set())
    assert {orphan.blob.digest for orphan in swept.waiting} == left
    # What went has no mark any more, what is left keeps the one it had.
    with store.database.reading() as connection:
        assert set(connection.scalars(select(ORPHANS.c.digest))) == left
    assert {blob.digest for blob in gc.sweep(store, timedelta(0)).removed} == left
