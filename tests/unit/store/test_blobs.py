"""Blobs in a folder: verified, atomic, bounded, and clean after failures."""

import errno
import hashlib
import os

import pytest

from onebert_store.blobs import FolderBlobs
from onebert_store.errors import StorageFull, StoreCorrupt, TooLarge

HELLO = "sha256:" + hashlib.sha256(b"hello").hexdigest()


@pytest.fixture
def blobs(tmp_path):
    return FolderBlobs(tmp_path / "blobs", max_bytes=100)


def files(tmp_path):
    return {path.name for path in (tmp_path / "blobs").iterdir()}


def test_a_blob_is_named_by_its_content(blobs, tmp_path):
    assert blobs.put(b"hello") == HELLO
    assert blobs.get(HELLO) == b"hello"
    assert blobs.digests() == {HELLO}
    assert files(tmp_path) == {HELLO.removeprefix("sha256:")}


def test_putting_twice_is_putting_once(blobs):
    assert blobs.put(b"hello") == blobs.put(b"hello")
    assert blobs.digests() == {HELLO}


def test_a_staged_file_counts_and_hashes_while_it_is_written(blobs):
    with blobs.stage() as staged:
        staged.write(b"hel")
        staged.write(b"lo")
        assert (staged.size, staged.digest, staged.read()) == (5, HELLO, b"hello")
        staged.write(b"!")
        assert staged.read() == b"hello!"


def test_what_is_not_committed_is_gone(blobs, tmp_path):
    with blobs.stage() as staged:
        staged.write(b"hello")
        assert len(files(tmp_path)) == 1
        assert blobs.digests() == set()
    assert files(tmp_path) == set()


def test_a_committed_file_survives_its_discard(blobs):
    with blobs.stage() as staged:
        staged.write(b"hello")
        staged.commit()
    staged.discard()
    assert blobs.get(HELLO) == b"hello"
    with pytest.raises(ValueError, match="already"):
        staged.commit()


def test_over_the_limit_nothing_more_is_written(blobs, tmp_path):
    with blobs.stage() as staged:
        staged.write(b"x" * 100)
        with pytest.raises(TooLarge, match="at most 100 bytes"):
            staged.write(b"x")
        assert staged.size == 100
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


def test_opening_removes_what_was_left_staged(blobs, tmp_path):
    staged = blobs.stage()
    staged.write(b"half")
    blobs.put(b"hello")
    again = FolderBlobs(tmp_path / "blobs", max_bytes=100)
    assert files(tmp_path) == {HELLO.removeprefix("sha256:")}
    assert again.digests() == {HELLO}
    staged.discard()


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_typed_and_leaves_nothing(blobs, tmp_path, monkeypatch, call, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageFull):
        blobs.put(b"hello")
    assert files(tmp_path) == set()


def test_another_disk_error_passes_and_leaves_nothing(blobs, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        blobs.put(b"hello")
    assert files(tmp_path) == set()
