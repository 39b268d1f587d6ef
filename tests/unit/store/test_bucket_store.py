"""A registry whose blobs are in a bucket: versions, sweeps, checks and recovery are what they are with a folder."""

import sys
from datetime import timedelta

import obstore
import pytest

from onebert_store.errors import InvalidSettings, StoreCorrupt
from onebert_store.file.format import dumps, loads
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import StoreAddress
from onebert_store.upkeep import gc
from stores import digests, name_of
from tiny_delta import make_delta

NO_TIME = timedelta(0)


@pytest.fixture
def place(bucket_url, tmp_path):
    """Where the store is: its database in a folder, its blobs in a bucket."""
    return StoreAddress.within(tmp_path / "store", blobs=bucket_url)


@pytest.fixture
def registry(store):
    return Registry(store)


@pytest.fixture
def onebert(onebert, monkeypatch, place):
    monkeypatch.setenv("ONEBERT_REGISTRY", place.registry)
    monkeypatch.setenv("ONEBERT_BLOBS", place.blobs)
    return onebert


def test_versions_are_kept_and_the_bucket_has_their_files_alone(registry, store, tmp_path):
    with registry.writer() as body:
        body.write(dumps(make_delta(2)))
        record, created = registry.add("spam", make_delta(2), body)
    assert (record.version, created) == (2, True)
    assert loads(registry.read(record)).digest == make_delta(2).digest
    assert digests(store) == {make_delta(1).digest, make_delta(2).digest}
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("tmp-")]


def test_an_orphan_is_marked_then_swept_and_what_has_a_version_stays(registry, store):
    orphan = store.blobs.put(dumps(make_delta(2)))
    record, _ = registry.add("spam", make_delta(3))
    registry.delete_version("spam", record.version)
    assert gc.sweep(store).removed == ()
    assert {entry.blob.digest for entry in gc.sweep(store).waiting} == {orphan, record.digest}
    swept = gc.sweep(store, NO_TIME)
    assert ({blob.digest for blob in swept.removed}, swept.waiting, swept.failure) == (
        {orphan, record.digest},
        (),
        None,
    )
    assert digests(store) == {make_delta(1).digest}


def test_the_same_content_again_renews_its_object(registry, store):
    """An older database may hold a mark of it as an orphan, which counts only if it is younger than the object."""
    digest = make_delta(1).digest
    (before,) = store.blobs.blobs()
    # A bucket tells whole seconds.
    while max(blob.modified for blob in store.blobs.blobs()) == before.modified:
        registry.add("ham", make_delta(1))
    assert digests(store) == {digest}


def test_an_upload_heals_a_damaged_object(onebert, registry, store):
    registry.add("tone", make_delta(2))
    for delta, content in ((make_delta(1), None), (make_delta(2), b"x")):
        name = name_of(delta)
        if content is None:
            obstore.delete(store.blobs._bucket, name)
        else:
            obstore.put(store.blobs._bucket, name, content)
    code, out, err = onebert("check")
    assert (code, err) == (1, "error: 2 of 2 versions cannot be served as they are\n")
    assert ("is missing" in out, "other content" in out) == (True, True)
    with pytest.raises(StoreCorrupt):
        registry.read(registry.version("tone", 1))
    registry.add("spam", make_delta(1))
    registry.add("tone", make_delta(2))
    assert onebert("check")[1].startswith("2 versions, 2 of them whole")


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///prefix", "s3:bucket", "s3://bucket/prefix?x=1", "s3://key:secret@bucket/x"]
)
def test_an_address_that_is_none_is_refused_and_not_repeated(tmp_path, url):
    with pytest.raises(InvalidSettings, match="s3://BUCKET/PREFIX") as caught:
        Registry.open(StoreAddress.within(tmp_path, blobs=url))
    assert "secret" not in caught.value.detail


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "onebert_store.blobs.bucket", raising=False)
    with pytest.raises(InvalidSettings, match=r"pip install '\.\[s3\]'"):
        Registry.open(StoreAddress.within(tmp_path, blobs="s3://bucket/prefix"))
