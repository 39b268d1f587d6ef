"""A real server whose PostgreSQL goes away, falls silent and comes back: answers go on, changes wait, all heals."""

import httpx
import pytest

from onebert_store.errors import StorageUnavailable
from servers import Server, Task, assert_answers

TEXT = "any text"


@pytest.fixture
def server(tmp_path, proxy):
    with Server(tmp_path, registry=proxy.url) as server:
        yield server


def test_answers_go_on_without_the_database(server, proxy):
    tasks = [Task(seed=seed) for seed in range(4)]
    with server.client() as client, httpx.Client(base_url=server.url) as web:
        for task in tasks[:2]:
            client.push("task", task.file)

        def refused(task):
            changes = [
                lambda: client.push("task", task.file),
                lambda: client.move_alias("task", "live", 2, expected=1),
                lambda: client.delete_version("task", 2),
            ]
            for change in changes:
                with pytest.raises(StorageUnavailable) as caught:
                    change()
                assert caught.value.retry_after == 5
                assert_answers(client.classify("task", TEXT)["results"][0], tasks[0].scores(TEXT))
            assert web.get("/readyz").json()["storage"] == "storage-unavailable"
            assert web.get("/healthz").status_code == 200

        proxy.refuse()
        refused(tasks[2])
        proxy.accept()
        assert client.push("task", tasks[2].file)["version"] == 3
        proxy.silence()
        refused(tasks[3])
        proxy.speak()
        assert client.move_alias("task", "live", 2, expected=1)["version"] == 2
        assert web.get("/readyz").json()["storage"] == "ok"
        assert_answers(client.classify("task", TEXT)["results"][0], tasks[1].scores(TEXT))
        assert client.push("task", tasks[3].file)["version"] == 4
        assert "s3cret" not in str(client.base())
    assert "s3cret" not in server.log.read_text()


def test_another_replica_has_what_one_was_given(server, proxy, tmp_path):
    """Both have one database and one folder of blobs; what one gets after the other's start, that one reads later."""
    with server.client() as client:
        client.push("task", Task(seed=1).file)
    (tmp_path / "other").mkdir()
    with Server(tmp_path / "other", registry=proxy.url, data_dir=tmp_path / "data") as other, other.client() as client:
        assert_answers(client.classify("task", TEXT)["results"][0], Task(seed=1).scores(TEXT))
        assert client.push("task", Task(seed=2).file)["version"] == 2


def test_a_start_without_the_database_ends_with_one_line(tmp_path, proxy):
    from servers import run_onebert, tiny_base

    proxy.refuse()
    done = run_onebert("serve", "--port", 0, base=tiny_base(), data_dir=tmp_path, registry=proxy.url, dtype="float32")
    assert done.returncode == 1
    assert "error: the store's database does not work: it cannot be reached" in done.stderr
    assert "s3cret" not in done.stderr + done.stdout
