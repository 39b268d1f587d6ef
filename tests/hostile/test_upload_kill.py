"""kill -9 of a real server while uploads come in: what was acknowledged is there whole, and nothing is half there."""

import copy
import hashlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import httpx
import numpy as np
import pytest

from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from onebert_store.upkeep import gc
from onebert_store.upkeep.check import check_database, check_versions
from servers import Server, Task

UPLOADERS = 4
# Acknowledgements after which the server is killed, while the other uploaders are somewhere in between.
ROUNDS = (1, 10, 30)
STORES, KILLS_OF_A_STORE = 10, 20
# Far longer than any acknowledgement takes: uploads that do not come to an end have hung.
HANG_SECONDS = 300.0


@pytest.fixture(scope="module")
def prototype():
    return Task("everything", "mean", seed=1)


@pytest.mark.slow
def test_acknowledged_uploads_survive_kill(tmp_path, prototype):
    acknowledged = {}
    with Server(tmp_path) as server:
        for round_, enough in enumerate(ROUNDS):
            _upload_until_killed(server, prototype, round_, enough, acknowledged)
            server.start()
            _assert_whole(server, acknowledged)
    assert len(acknowledged) >= sum(ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(STORES))
def test_two_hundred_kills_lose_nothing_that_was_acknowledged(tmp_path, prototype, seed):
    chance, acknowledged = random.Random(seed), {}
    for kill in range(KILLS_OF_A_STORE):
        server = Server(tmp_path)
        _upload_until_killed(server, prototype, seed * KILLS_OF_A_STORE + kill, chance.randrange(1, 12), acknowledged)
        with Registry.open(tmp_path / "data") as registry:
            stored = {(entry.task, entry.version): entry for entry in registry.entries()}
            assert {place: registry.read(stored[place]) for place in acknowledged} == acknowledged
    with join_store(tmp_path / "data") as store:
        check_database(store.database)
        assert [
            check_version for check_version in check_versions(store, list(stored.values())) if check_version.problem
        ] == []
    print(f"{KILLS_OF_A_STORE} kills, {len(acknowledged)} acknowledged, {len(stored)} stored, 0 lost")


def _upload_until_killed(server, prototype, round_, enough, acknowledged):
    before = len(acknowledged)
    reached = threading.Event()

    def upload(uploader):
        # Whoever ends early has failed: then there is nothing to wait for.
        with server.client() as web, ExitStack() as at_the_end:
            at_the_end.callback(reached.set)
            for i in range(1000):
                file = _file(prototype, seed=(round_, uploader, i))
                task = f"task-{uploader}"
                try:
                    pushed = web.push(task, file)
                except httpx.TransportError:
                    return
                acknowledged[task, pushed["version"]] = file
                if len(acknowledged) >= before + enough:
                    reached.set()

    with ThreadPoolExecutor(UPLOADERS) as pool:
        uploads = [pool.submit(upload, uploader) for uploader in range(UPLOADERS)]
        in_time = reached.wait(HANG_SECONDS)
        # Whether or not: the uploaders then end.
        server.kill()
        assert in_time, f"not {enough} acknowledgements in {HANG_SECONDS} s"
        for done in uploads:
            done.result(HANG_SECONDS)
    assert len(acknowledged) >= before + enough


def _assert_whole(server, acknowledged):
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
    # Every row has its own blob; what the kills left besides is garbage that can be told and swept.
    with join_store(server.folder / "data") as store:
        gc.sweep(store, timedelta(0))
        store.blobs.drop_unfinished(datetime.now(UTC))
    assert len(list((server.folder / "data" / "blobs").iterdir())) == len(stored)


def _file(prototype, seed):
    """The prototype with another head: quick to make, and no two are equal, whichever threads make them at once."""
    task = copy.copy(prototype)
    task.tensors = {**prototype.tensors, "head.bias": np.random.default_rng(seed).normal(size=3).astype(np.float32)}
    return task.file
