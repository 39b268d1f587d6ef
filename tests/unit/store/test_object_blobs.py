"""What only a bucket brings: errors of a server that is away, wrong or full, and copies on this machine in front."""

import os
from dataclasses import replace
from datetime import timedelta

import pytest

from blob_stores import BucketLocation
from fake_servers import FakeServer, Handler
from object_server import BUCKET, KEY, SECRET, environment
from onebert_store.blobs.bucket import PROMPT, open_bucket
from onebert_store.blobs.cache import BlobCache
from onebert_store.blobs.objects import Objects
from onebert_store.blobs.staging import digest_of
from onebert_store.errors import BlobsAway, InvalidSettings, StorageFull, StorageUnavailable, StoreCorrupt
from tcp_proxy import TcpProxy

HELLO = digest_of(b"hello")
NAME = HELLO.removeprefix("sha256:")


class Answers(Handler):
    """Answers every request alike, as the server's `answer` says: a status and a body."""

    protocol_version = "HTTP/1.1"

    def handle_any(self):
        self.body()
        self.reply(*self.server.answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any


@pytest.fixture
def bucket_at(monkeypatch):
    """Says at which port of this machine the server of buckets is."""

    def say(port):
        for name, value in environment(port).items():
            monkeypatch.setenv(name, value)

    return say


@pytest.fixture
def wrong_server(bucket_at):
    """A server that speaks HTTP and answers what a test says."""
    with FakeServer(Answers) as server:
        bucket_at(server.server_port)
        yield server


@pytest.fixture
def proxy(object_server, bucket_prefix, bucket_at):
    """A network that can fail, before the server; `location` comes after it."""
    with TcpProxy(object_server.connect) as proxy:
        bucket_at(proxy.port)
        yield proxy


def away(folder):
    """Blobs in a bucket whose server a test has chosen."""
    return BucketLocation(folder, BUCKET, "prefix").open(100)


@pytest.fixture
def location(tmp_path, bucket_prefix):
    return BucketLocation(tmp_path, BUCKET, bucket_prefix)


def every_call(blobs):
    return {
        "put": lambda: blobs.put(b"hello"),
        "get": lambda: blobs.get(HELLO),
        "verify": lambda: blobs.verify(HELLO),
        "list": lambda: list(blobs.blobs()),
        "delete": lambda: blobs.delete(HELLO),
    }


def error_xml(code):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>about {KEY}</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "code", "error", "reason"),
    [
        (401, "InvalidToken", BlobsAway, "credentials are not accepted"),
        (403, "AccessDenied", BlobsAway, "credentials may not do this"),
        (404, "NoSuchBucket", BlobsAway, "no such bucket"),
        (301, "PermanentRedirect", BlobsAway, "another region"),
        (400, "InvalidArgument", BlobsAway, "refuses the request"),
        (500, "InternalError", BlobsAway, "error of its own"),
        (503, "SlowDown", BlobsAway, "error of its own"),
        (507, "XMinioStorageFull", StorageFull, "no room"),
        (403, "QuotaExceeded", StorageFull, "no room"),
    ],
)
def test_a_bucket_that_refuses_is_named_and_no_secret_is(wrong_server, tmp_path, status, code, error, reason):
    wrong_server.answer = status, error_xml(code)
    blobs = away(tmp_path)
    for name, call in every_call(blobs).items():
        with pytest.raises(error, match=reason) as caught:
            call()
        told = f"{caught.value.detail} {caught.value.__cause__} {caught.value.__suppress_context__}"
        assert not [word for word in (KEY, SECRET, "127.0.0.1", BUCKET, "prefix") if word in told], name
        assert caught.value.__suppress_context__
    assert list(blobs.unfinished()) == []


def test_credentials_that_are_nowhere_are_said_to_be(wrong_server, tmp_path, monkeypatch):
    """Without variables the machine's own service is asked, and refuses."""
    wrong_server.answer = 403, b"no"
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", os.environ["AWS_ENDPOINT_URL"])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(BlobsAway, match="no credentials for it were found"):
        away(tmp_path).put(b"hello")


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_ACCESS_KEY_ID", None), ("AWS_SECRET_ACCESS_KEY", None), ("AWS_SKIP_SIGNATURE", "secret")]
)
def test_variables_that_are_none_of_a_bucket_are_refused_and_not_repeated(wrong_server, monkeypatch, name, value):
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettings, match="AWS_… variables") as caught:
        open_bucket(BUCKET, "prefix")
    assert SECRET not in caught.value.detail
    assert "'secret'" not in caught.value.detail


def test_wrong_credentials_are_refused_by_the_server_itself(location, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for call in every_call(away(tmp_path)).values():
        with pytest.raises(StorageUnavailable, match="credentials"):
            call()


def test_a_bucket_that_comes_back_is_used_again(proxy, location):
    blobs = location.open(100)
    blobs.put(b"hello")
    proxy.refuse()
    for call in (lambda: blobs.get(HELLO), lambda: blobs.put(b"other")):
        with pytest.raises(StorageUnavailable):
            call()
    proxy.accept()
    assert blobs.get(HELLO) == b"hello"
    assert blobs.get(blobs.put(b"other")) == b"other"


def test_a_silent_bucket_is_waited_for_once_and_then_refused_at_once(proxy, location, bucket_prefix):
    """Nine ask one after the other while it says nothing; the silence of one is all that they wait for together."""
    location.client = open_bucket(BUCKET, bucket_prefix, replace(PROMPT, silent=timedelta(seconds=2), retries=0))
    blobs = location.open(100)
    blobs.put(b"hello")
    proxy.silence()
    for message in ("does not answer in time", *["did not answer a moment ago"] * 8):
        with pytest.raises(BlobsAway, match=message):
            blobs.get(HELLO)
    proxy.speak()
    blobs._silent_until = 0.0
    assert blobs.get(HELLO) == b"hello"


def test_the_bytes_of_a_disk_that_forgets_do_not_reach_the_bucket(location):
    blobs = location.open(100)
    with blobs.writer() as writer:
        writer.write(b"hello")
        (path,) = location.staging.iterdir()
        writer.read()
        path.write_bytes(b"hellp")
        with pytest.raises(StorageUnavailable, match="other bytes"):
            writer.commit()
    assert (location.names(), list(blobs.unfinished())) == (set(), [])


def test_a_copy_on_this_machine_answers_without_the_bucket(location, tmp_path, bucket_prefix):
    cache = BlobCache(tmp_path / "cache", 100)
    written, read = location.open(100, cache).put(b"hello"), BlobCache(tmp_path / "other", 100)
    location.open(100, read).get(written)
    location.client.delete(NAME)
    for place in (cache, read):
        blobs = location.open(100, place)
        assert blobs.get(HELLO) == blobs.get_local(HELLO) == b"hello"
        # A check is of the bucket, whatever there is here.
        with pytest.raises(StoreCorrupt, match="missing"):
            blobs.verify(HELLO)
        blobs.delete(HELLO)
        assert blobs.get_local(HELLO) is None
        with pytest.raises(StoreCorrupt, match="missing"):
            blobs.get(HELLO)


def test_a_damaged_copy_is_fetched_again(location, tmp_path):
    cache = BlobCache(tmp_path / "cache", 100)
    blobs = location.open(100, cache)
    blobs.put(b"hello")
    (tmp_path / "cache" / NAME).write_bytes(b"hellp")
    assert blobs.get(HELLO) == b"hello"
    assert (tmp_path / "cache" / NAME).read_bytes() == b"hello"
    (tmp_path / "cache" / NAME).unlink()
    os.mkfifo(tmp_path / "cache" / NAME)
    assert blobs.get(HELLO) == b"hello"
    assert (tmp_path / "cache" / NAME).read_bytes() == b"hello"


def test_the_first_upload_removes_what_a_killed_process_has_left_long_ago(location):
    old, young = location.staging / "tmp-old", location.staging / "tmp-young"
    for left in (old, young):
        left.write_bytes(b"half an upload")
    os.utime(old, (0, 0))
    with location.open(100).writer():
        assert not old.exists()
        assert young.exists()


def test_the_least_recently_used_copies_go(tmp_path):
    cache = BlobCache(tmp_path, 1600)
    contents = [bytes([number]) * 100 for number in range(40)]
    cache.keep(digest_of(contents[0]), contents[0])
    for number, content in enumerate(contents[1:], 1):
        cache.keep(digest_of(content), content)
        # Each use is a second later than the one before; the first copy is used again every time.
        os.utime(tmp_path / digest_of(content).removeprefix("sha256:"), (number, number))
        os.utime(tmp_path / digest_of(contents[0]).removeprefix("sha256:"), (number, number))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1600
    cached = [number for number, content in enumerate(contents) if cache.get(digest_of(content))]
    assert cached[0] == 0
    assert cached[1:] == list(range(cached[1], 40))
    assert len(cached) >= 14


def test_using_a_copy_keeps_it(tmp_path):
    cache = BlobCache(tmp_path, 300)
    contents = [bytes([number]) * 100 for number in range(3)]
    for number, content in enumerate(contents[:2]):
        cache.keep(digest_of(content), content)
        os.utime(tmp_path / digest_of(content).removeprefix("sha256:"), (number, number))
    assert cache.get(digest_of(contents[0])) == contents[0]
    again = BlobCache(tmp_path, 200)
    again.keep(digest_of(contents[2]), contents[2])
    assert [number for number, content in enumerate(contents) if again.get(digest_of(content))] in ([0, 2], [2])


def test_a_disk_that_refuses_is_an_empty_cache(tmp_path):
    BlobCache(tmp_path / "none", 0).keep(HELLO, b"hello")
    BlobCache(tmp_path / "small", 4).keep(HELLO, b"hello")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    cache = BlobCache(tmp_path / "file", 100)
    cache.keep(HELLO, b"hello")
    assert cache.get(HELLO) is None
    cache.drop(HELLO)


def test_an_upload_under_way_elsewhere_is_no_success(wrong_server):
    """As S3 says of one whose upload by somebody else is under way, and may fail."""
    wrong_server.answer = 412, error_xml("PreconditionFailed")
    with pytest.raises(BlobsAway, match="the bucket of the answers does not work"):
        Objects(BUCKET, "prefix", "the bucket of the answers").create("part", b"hello")
