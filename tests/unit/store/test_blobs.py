"""Blobs in a folder and in a bucket: verified, atomic, bounded, and clean after failures."""

import contextlib
import errno
import hashlib
import os
import socket
import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from blob_stores import BucketLocation, FolderLocation
from object_server import BUCKET
from onebert_store.errors import StorageFull, StorageUnavailable, StoreCorrupt, TooLarge

HELLO = "sha256:" + hashlib.sha256(b"hello").hexdigest()
NAME = HELLO.removeprefix("sha256:")


@pytest.fixture(params=["folder", "bucket"])
def location(request, tmp_path):
    """Where the blobs of a test are: each of these tests is for both."""
    if request.param == "folder":
        return FolderLocation(tmp_path)
    return BucketLocation(tmp_path, BUCKET, request.getfixturevalue("bucket_prefix"))


@pytest.fixture
def blobs(location):
    return location.open(max_bytes=100)


@pytest.fixture
def folder_location(tmp_path):
    return FolderLocation(tmp_path)


@pytest.fixture
def folder(folder_location):
    """For what only a disk does."""
    return folder_location.open(max_bytes=100)


def digests(blobs):
    return {blob.digest for blob in blobs.blobs()}


def staged(location):
    return {path.name for path in location.staging.iterdir()} - {NAME}


def test_a_blob_is_named_by_its_content(blobs, location):
    assert blobs.put(b"hello") == HELLO
    assert blobs.get(HELLO) == b"hello"
    assert digests(blobs) == {HELLO}
    assert (location.names(), staged(location)) == ({NAME}, set())


def test_many_who_put_the_same_at_a_time_all_have_it(blobs, location):
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(blobs.put, [b"hello"] * 16)) == {HELLO}
    assert blobs.get(HELLO) == b"hello"
    assert digests(blobs) == {HELLO}
    assert (location.names(), staged(location)) == ({NAME}, set())


def test_a_writer_file_counts_and_hashes_while_it_is_written(blobs):
    with blobs.writer() as writer:
        writer.write(b"hel")
        writer.write(b"lo")
        assert (writer.size, writer.digest, writer.read()) == (5, HELLO, b"hello")
        writer.write(b"!")
        assert writer.read() == b"hello!"


def test_what_is_not_committed_is_gone(blobs, location):
    with blobs.writer() as writer:
        writer.write(b"hello")
        assert len(staged(location)) == 1
        assert digests(blobs) == set()
    assert (location.names(), staged(location)) == (set(), set())


def test_over_the_limit_nothing_more_is_written(blobs, location):
    with blobs.writer() as writer:
        writer.write(b"x" * 100)
        with pytest.raises(TooLarge, match="at most 100 bytes"):
            writer.write(b"x")
        assert writer.size == 100
    assert (location.names(), staged(location)) == (set(), set())


@pytest.mark.parametrize("content", [b"hellp", b"", b"hello "], ids=["flipped", "emptied", "longer"])
def test_a_changed_blob_is_never_returned_and_a_new_put_heals_it(blobs, location, content):
    blobs.put(b"hello")
    location.write(NAME, content)
    with pytest.raises(StoreCorrupt, match="other content"):
        blobs.get(HELLO)
    with pytest.raises(StoreCorrupt, match="other content"):
        blobs.verify(HELLO)
    blobs.put(b"hello")
    assert blobs.get(HELLO) == b"hello"
    blobs.verify(HELLO)


def test_a_missing_blob_is_a_typed_error(blobs):
    for look in (blobs.get, blobs.verify):
        with pytest.raises(StoreCorrupt, match="is missing"):
            look(HELLO)
    blobs.delete(HELLO)


def test_a_deleted_blob_is_gone_and_can_be_put_again(blobs):
    blobs.put(b"hello")
    blobs.put(b"other")
    blobs.delete(HELLO)
    blobs.sync()
    assert HELLO not in digests(blobs)
    assert len(digests(blobs)) == 1
    blobs.put(b"hello")
    assert blobs.get(HELLO) == b"hello"


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "sha256:../x", HELLO.upper(), HELLO + "\n", HELLO[:-1]])
def test_only_a_digest_becomes_a_name(blobs, digest):
    for call in (blobs.get, blobs.verify, blobs.delete):
        with pytest.raises(ValueError, match="not a digest"):
            call(digest)


def test_what_is_not_named_like_a_blob_is_none(blobs, location):
    for name in ("readme.txt", NAME[:-1], NAME.upper(), "x" + NAME):
        location.write(name, b"hello")
    assert digests(blobs) == set()


def test_a_blob_tells_its_size_and_age(blobs):
    before = datetime.now(UTC) - timedelta(seconds=1)
    blobs.put(b"hello")
    (blob,) = blobs.blobs()
    assert (blob.digest, blob.size) == (HELLO, 5)
    # A bucket tells whole seconds.
    assert before < blob.modified + timedelta(seconds=1)
    assert blob.modified <= datetime.now(UTC)


def test_opening_removes_nothing_and_what_is_unfinished_goes_when_it_is_old(blobs, location):
    writer = blobs.writer()
    writer.write(b"half")
    blobs.put(b"hello")
    again = location.open(max_bytes=100)
    (half,) = again.unfinished()
    again.drop_unfinished(before=half.modified)
    assert len(staged(location)) == 1
    again.drop_unfinished(before=half.modified + timedelta(seconds=1))
    assert (location.names(), staged(location)) == ({NAME}, set())
    with pytest.raises(StorageUnavailable):
        writer.commit()


def test_a_check_reads_in_pieces_and_finds_one_changed_byte(location):
    blobs = location.open(max_bytes=2**25)
    digest = blobs.put(bytes(2**25))
    blobs.verify(digest)
    tracemalloc.start()
    blobs.verify(digest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20
    location.write(digest.removeprefix("sha256:"), bytes(2**24) + b"x" + bytes(2**24 - 1))
    with pytest.raises(StoreCorrupt, match="other content"):
        blobs.verify(digest)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):
        made.bind(path.name)


OTHERS = {
    "folder": os.mkdir,
    "pipe": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
}
"""What may lie in place of a file: opening a pipe waits for its writer, and a device never ends."""


@pytest.mark.parametrize("kind", OTHERS)
def test_a_put_heals_what_is_no_file(folder, folder_location, kind):
    OTHERS[kind](folder_location.staging / NAME)
    for look in (folder.get, folder.verify):
        with pytest.raises(StoreCorrupt if kind != "loop" else StorageUnavailable, match=f"{HELLO} is not|levels"):
            look(HELLO)
    assert digests(folder) == set()
    if kind != "folder":
        folder.put(b"hello")
        assert folder.get(HELLO) == b"hello"


def test_a_grown_blob_is_read_up_to_the_limit(location):
    blobs = location.open(max_bytes=2**21)
    blobs.put(b"hello")
    location.write(NAME, bytes(2**25))
    tracemalloc.start()
    with pytest.raises(StoreCorrupt, match="other content"):
        blobs.get(HELLO)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "error"),
    [
        *((number, StorageFull) for number in (errno.ENOSPC, errno.EDQUOT)),
        *((number, StorageUnavailable) for number in (errno.EIO, errno.EROFS, errno.EACCES)),
    ],
)
def test_a_disk_that_is_full_or_refuses_is_typed_and_leaves_nothing(
    folder, folder_location, monkeypatch, call, number, error
):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(error, match="no room" if error is StorageFull else os.strerror(number)):
        folder.put(b"hello")
    assert list(folder_location.staging.iterdir()) == []


def test_a_disk_that_cannot_be_written_or_read_is_typed(folder, monkeypatch):
    folder.put(b"hello")

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    for call in (folder.writer, lambda: folder.get(HELLO), lambda: folder.verify(HELLO)):
        with pytest.raises(StorageUnavailable, match="Read-only file system"):
            call()
