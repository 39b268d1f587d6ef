"""kill -9 of a real server while uploads come in: what was acknowledged is there whole, and nothing is half there."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from onebert_store.errors import ServerUnreachable
from servers import Server, Task

UPLOADERS = 4
# Acknowledgements after which the server is killed, while the other uploaders are somewhere in between.
ROUNDS = (1, 10, 30)


@pytest.fixture(scope="module")
def prototype():
    return Task("everything", "mean", seed=1)


def test_acknowledged_uploads_survive_kill(tmp_path, prototype):
    acknowledged = {}
    with Server(tmp_path) as server:
        for round_, enough in enumerate(ROUNDS):
            _upload_until_killed(server, prototype, round_, enough, acknowledged)
            server.start()
            _assert_whole(server, acknowledged)
    assert len(acknowledged) >= sum(ROUNDS)


def _upload_until_killed(server, prototype, round_, enough, acknowledged):
    before = len(acknowledged)
    reached = threading.Event()

    def upload(uploader):
        with server.client() as own:
            for i in range(1000):
                file = _file(prototype, seed=(round_, uploader, i))
                task = f"task-{uploader}"
                try:
                    pushed = own.push(task, file)
                except ServerUnreachable:
                    return
                acknowledged[task, pushed["version"]] = file
                if len(acknowledged) >= before + enough:
                    reached.set()

    with ThreadPoolExecutor(UPLOADERS) as pool:
        uploads = [pool.submit(upload, uploader) for uploader in range(UPLOADERS)]
        assert reached.wait(60)
        server.kill()
        for done in uploads:
            done.result()


def _assert_whole(server, acknowledged):
    blobs = list((server.folder / "data" / "blobs").iterdir())
    with server.client() as client, httpx.Client(base_url=server.url) as web:
        assert web.get("/readyz").json()["unavailable"] == 0
        stored = {(task["name"], n) for task in client.tasks() for n in task["versions"]}
        assert acknowledged.keys() <= stored
        for task, version in stored:
            content = client.download(task, version)
            digest = hashlib.sha256(content).hexdigest()
            assert client.version(task, version)["digest"] == f"sha256:{digest}"
            assert content == acknowledged.get((task, version), content)
            assert client.classify(f"{task}@{version}", "still here")["digest"] == f"sha256:{digest}"
        # No temporary file and no blob without its row, and every row has its own.
        assert len(blobs) == len(stored)


def _file(prototype, seed):
    """The prototype with another head: quick to make, and no two are equal."""
    prototype.tensors["head.bias"] = np.random.default_rng(seed).normal(size=3).astype(np.float32)
    return prototype.file
