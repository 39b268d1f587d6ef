"""Blobs in a folder: verified, atomic, bounded, and clean after failures."""

import errno
import hashlib
import os
import tempfile
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from onebert_store.errors import StorageFull, StorageUnavailable, StoreCorrupt, TooLarge
from onebert_store.registry.folder_blobs import FolderBlobs

HELLO = "sha256:" + hashlib.sha256(b"hello").hexdigest()


@pytest.fixture
def blobs(tmp_path):
    return FolderBlobs(tmp_path / "blobs", max_bytes=100)


def digests(blobs):
    return {blob.digest for blob in blobs.blobs()}


def files(tmp_path):
    return {path.name for path in (tmp_path / "blobs").iterdir()}


def test_a_blob_is_named_by_its_content(blobs, tmp_path):
    assert blobs.put(b"hello") == HELLO
    assert blobs.get(HELLO) == b"hello"
    assert digests(blobs) == {HELLO}
    assert files(tmp_path) == {HELLO.removeprefix("sha256:")}


def test_putting_twice_is_putting_once(blobs):
    assert blobs.put(b"hello") == blobs.put(b"hello")
    assert digests(blobs) == {HELLO}


def test_a_writer_file_counts_and_hashes_while_it_is_written(blobs):
    with blobs.writer() as writer:
        writer.write(b"hel")
        writer.write(b"lo")
        assert (writer.size, writer.digest, writer.read()) == (5, HELLO, b"hello")
        writer.write(b"!")
        assert writer.read() == b"hello!"


def test_what_is_not_committed_is_gone(blobs, tmp_path):
    with blobs.writer() as writer:
        writer.write(b"hello")
        assert len(files(tmp_path)) == 1
        assert digests(blobs) == set()
    assert files(tmp_path) == set()


def test_a_committed_file_survives_its_discard(blobs):
    with blobs.writer() as writer:
        writer.write(b"hello")
        writer.commit()
    writer.discard()
    assert blobs.get(HELLO) == b"hello"
    with pytest.raises(ValueError, match="already"):
        writer.commit()


def test_over_the_limit_nothing_more_is_written(blobs, tmp_path):
    with blobs.writer() as writer:
        writer.write(b"x" * 100)
        with pytest.raises(TooLarge, match="at most 100 bytes"):
            writer.write(b"x")
        assert writer.size == 100
    assert files(tmp_path) == set()


@pytest.mark.parametrize("content", [b"hellp", b"", b"hello "], ids=["flipped", "emptied", "longer"])
def test_a_changed_blob_is_never_returned_and_a_new_put_heals_it(blobs, tmp_path, content):
    blobs.put(b"hello")
    (tmp_path / "blobs" / HELLO.removeprefix("sha256:")).write_bytes(content)
    with pytest.raises(StoreCorrupt, match="other content"):
        blobs.get(HELLO)
    blobs.put(b"hello")
    assert blobs.get(HELLO) == b"hello"


def test_a_missing_blob_is_a_typed_error(blobs):
    with pytest.raises(StoreCorrupt, match="is missing"):
        blobs.get(HELLO)
    blobs.delete(HELLO)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "sha256:../x", HELLO.upper(), HELLO + "\n", HELLO[:-1]])
def test_only_a_digest_becomes_a_file_name(blobs, digest):
    with pytest.raises(ValueError, match="not a digest"):
        blobs.get(digest)


def test_a_blob_tells_its_size_and_age(blobs):
    before = datetime.now(UTC) - timedelta(seconds=1)
    blobs.put(b"hello")
    (found,) = blobs.blobs()
    assert (found.digest, found.size) == (HELLO, 5)
    assert before < found.modified <= datetime.now(UTC)


def test_opening_removes_nothing_and_what_is_unfinished_goes_when_it_is_old(blobs, tmp_path):
    writer = blobs.writer()
    writer.write(b"half")
    blobs.put(b"hello")
    again = FolderBlobs(tmp_path / "blobs", max_bytes=100)
    (half,) = again.unfinished()
    again.drop_unfinished(before=half.modified)
    assert len(files(tmp_path)) == 2
    again.drop_unfinished(before=half.modified + timedelta(seconds=1))
    assert files(tmp_path) == {HELLO.removeprefix("sha256:")}
    with pytest.raises(StorageUnavailable):
        writer.commit()


def test_a_scrub_reads_in_pieces_and_finds_one_changed_byte(tmp_path):
    blobs = FolderBlobs(tmp_path / "blobs", max_bytes=2**25)
    digest = blobs.put(bytes(2**25))
    blobs.verify(digest)
    tracemalloc.start()
    blobs.verify(digest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20
    with open(tmp_path / "blobs" / digest.removeprefix("sha256:"), "r+b") as file:
        file.seek(2**24)
        file.write(b"x")
    with pytest.raises(StoreCorrupt, match="other content"):
        blobs.verify(digest)


def test_a_blob_that_is_a_folder_is_damage_and_not_a_crash(blobs, tmp_path):
    (tmp_path / "blobs" / HELLO.removeprefix("sha256:")).mkdir()
    for look in (blobs.get, blobs.verify):
        with pytest.raises(StoreCorrupt, match="is a folder"):
            look(HELLO)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_typed_and_leaves_nothing(blobs, tmp_path, monkeypatch, call, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageFull):
        blobs.put(b"hello")
    assert files(tmp_path) == set()


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses_is_typed_and_leaves_nothing(blobs, tmp_path, monkeypatch, call, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageUnavailable, match=os.strerror(number)):
        blobs.put(b"hello")
    assert files(tmp_path) == set()


def test_a_disk_that_cannot_be_written_or_read_is_typed(blobs, monkeypatch):
    blobs.put(b"hello")

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    for call in (blobs.writer, lambda: blobs.get(HELLO), lambda: blobs.verify(HELLO)):
        with pytest.raises(StorageUnavailable, match="Read-only file system"):
            call()
