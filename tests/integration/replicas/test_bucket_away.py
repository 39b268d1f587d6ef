"""A server whose bucket is away, silent, or back again: what is in memory answers, changes are refused, all heals."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from object_server import environment
from onebert_store.errors import StorageUnavailable, VersionUnavailable
from servers import Server, Task, assert_answers, wait_until
from tcp_proxy import TcpProxy

TEXT = "anything at all"


@pytest.fixture
def proxy(object_server, bucket_url, monkeypatch):
    """Stands before the bucket; the environment leads there."""
    with TcpProxy(object_server.connect) as proxy:
        for name, value in environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


def ready(server):
    return httpx.get(f"{server.url}/readyz").json()


def test_a_bucket_that_is_away_refuses_changes_alone(proxy, bucket_url, tmp_path):
    known, new = Task(seed=1), Task(seed=2)
    with Server(tmp_path, blobs=bucket_url) as server, server.client() as client:
        client.push("known", known.file)
        proxy.refuse()
        assert_answers(client.classify("known", TEXT)["results"][0], known.scores(TEXT))
        with pytest.raises(StorageUnavailable, match="the store's bucket does not work") as caught:
            client.push("new", new.file)
        assert caught.value.retry_after == 5
        assert ready(server)["storage"] == "storage-unavailable"
        assert [task["name"] for task in client.tasks()] == ["known"]
        proxy.accept()
        assert client.push("new", new.file)["created"]
        assert ready(server)["storage"] == "ok"
        assert_answers(client.classify("new", TEXT)["results"][0], new.scores(TEXT))


def test_a_silent_bucket_keeps_an_upload_waiting_and_nobody_else(proxy, bucket_url, tmp_path):
    known, new = Task(seed=1), Task(seed=2)
    with (
        Server(tmp_path, blobs=bucket_url) as server,
        server.client() as client,
        server.client() as uploader,
        ThreadPoolExecutor(1) as pool,
    ):
        client.push("known", known.file)
        proxy.silence()
        waiting = pool.submit(uploader.push, "new", new.file)
        assert_answers(client.classify("known", TEXT)["results"][0], known.scores(TEXT))
        assert not waiting.done()
        proxy.speak()
        assert waiting.result()["created"]
        assert_answers(client.classify("new", TEXT)["results"][0], new.scores(TEXT))


def test_a_server_starts_without_its_bucket(proxy, bucket_url, tmp_path):
    """Of two versions one has a copy on this machine."""
    first, lost = Task(seed=1), Task(seed=2)
    with Server(tmp_path, blobs=bucket_url) as server:
        with server.client() as client:
            client.push("kept", first.file)
            digest = client.push("lost", lost.file)["digest"]
        server.kill()
        (copy,) = (tmp_path / "data").rglob(digest.removeprefix("sha256:"))
        copy.unlink()
        proxy.refuse()
        server.start()
        with server.client() as client:
            assert_answers(client.classify("kept", TEXT)["results"][0], first.scores(TEXT))
            with pytest.raises(VersionUnavailable, match="bucket does not work"):
                client.classify("lost", TEXT)
            proxy.accept()
            wait_until(lambda: ready(server)["resident"] == 2)
            assert_answers(client.classify("lost", TEXT)["results"][0], lost.scores(TEXT))
