"""Blobs that no version has: marked, kept for a time of grace, and back again if their database is."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from onebert_store.errors import StorageUnavailable
from onebert_store.file.format import dumps
from onebert_store.registry import gc
from onebert_store.registry.database import ORPHANS, writing
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from tiny_delta import make_delta

DAY = timedelta(hours=24)


@pytest.fixture
def store(tmp_path):
    """The store of a registry in use, as another process sees it."""
    with Registry.open(tmp_path) as registry, join_store(tmp_path) as store:
        registry.add("spam", make_delta(1))
        yield store


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
    with writing(store.database) as connection:
        connection.execute(ORPHANS.update().values(since=datetime.now(UTC) - by))


def digests(store):
    return {blob.digest for blob in store.blobs.blobs()}


def test_an_old_blob_that_is_first_seen_now_is_marked_and_kept(store):
    orphan = put(store, 2)
    first = gc.sweep(store)
    assert first.removed == ()
    assert [one.blob.digest for one in first.kept] == [orphan]
    (marked,) = gc.find_orphans(store)
    assert datetime.now(UTC) - marked.since < timedelta(minutes=1)
    assert gc.sweep(store).kept == (marked,)


def test_what_has_been_marked_for_longer_than_the_grace_goes_and_nothing_else(store, registry):
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


def test_opening_marks_what_a_crash_left(tmp_path):
    with Registry.open(tmp_path), join_store(tmp_path) as store:
        orphan = put(store, 2)
    with Registry.open(tmp_path), join_store(tmp_path) as store:
        (found,) = gc.find_orphans(store)
        assert (found.blob.digest, found.since is not None) == (orphan, True)


def test_unfinished_uploads_go_when_nobody_has_written_to_them_for_an_hour(store):
    with store.blobs.writer() as young, store.blobs.writer() as old:
        then = (datetime.now(UTC) - timedelta(hours=2)).timestamp()
        os.utime(old._path, (then, then))
        gc.sweep(store, timedelta(0))
        assert [blob.digest for blob in store.blobs.unfinished()] == [young._path.name]


def test_a_sweep_that_the_disk_ends_can_be_repeated(store, monkeypatch):
    orphans = {put(store, seed) for seed in (2, 3)}
    gc.sweep(store)
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", refuse)
        with pytest.raises(StorageUnavailable):
            gc.sweep(store, timedelta(0))
    assert orphans < digests(store)
    assert {blob.digest for blob in gc.sweep(store, timedelta(0)).removed} == orphans


def refuse(*_, **__):
    raise OSError(30, "Read-only file system")
