"""Many clients at once on a real server: every answer is by the version it names, whatever else goes on."""

import fcntl
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from lengths import examples
from onebert_store.errors import VersionNotFound
from servers import Task, assert_answers, layouts, wait_until

TEXTS = [f"my order {i} is late " + "and the parcel was broken " * (i % 4) for i in range(8)]
# At least so many, and on until both versions have answered; the second number only ends a test that fails.
FLIPS, MOST_FLIPS = examples(1000), 10_000
KINDS = [("bitfit", "mean"), ("layernorm", "cls"), ("lora", "pooler"), ("spafit", "mean"), ("gains", "cls")]


@pytest.fixture(scope="module")
def expected(client):
    """(task, text) -> scores, for tasks of several kinds and label counts."""
    scores = {}
    for i in range(10):
        task = Task(*KINDS[i % len(KINDS)], labels=2 + i % 3, seed=i)
        client.push(f"task-{i}", task.file)
        scores |= {(f"task-{i}", text): task.scores(text) for text in TEXTS}
    return scores


@layouts
def test_every_client_gets_its_own_tasks_answers(server, expected):
    asked = list(expected)

    def ask(seed):
        rng = np.random.default_rng(seed)
        with server.client() as own:
            for _ in range(12):
                chosen = [asked[i] for i in rng.integers(0, len(asked), rng.integers(1, 20))]
                for (task, text), result in zip(chosen, own.classify_items(chosen), strict=True):
                    assert result["task"] == task
                    assert_answers(result, expected[task, text])
        return seed

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == list(range(16))


@pytest.mark.slow
@layouts
def test_alias_flips_under_load(server, client):
    """Every answer's version was live at some time between sending and receiving, and the answer is that version's."""
    versions = {1: Task(seed=101), 2: Task("everything", "cls", seed=102)}
    for task in versions.values():
        client.push("flipped", task.file)
    scores = {n: task.scores(TEXTS[0]) for n, task in versions.items()}
    # Version 1 may have been live from the beginning until the reply to the first move.
    live = {1: [[0.0, np.inf]], 2: []}
    stopped = threading.Event()
    answers = []

    def flip():
        try:
            for i in range(MOST_FLIPS):
                if i >= FLIPS and {answer["version"] for _, _, answer in list(answers)} == {1, 2}:
                    break
                old, new = (1, 2) if i % 2 == 0 else (2, 1)
                sent = time.monotonic()
                client.move_alias("flipped", "live", new, expected=old)
                live[old][-1][1] = time.monotonic()
                live[new].append([sent, np.inf])
        finally:
            stopped.set()

    def ask():
        with server.client() as own:
            while not stopped.is_set():
                sent = time.monotonic()
                answer = own.classify("flipped", [TEXTS[0]] * 3)
                answers.append((sent, time.monotonic(), answer))

    with ThreadPoolExecutor(5) as pool:
        for done in [pool.submit(flip), *(pool.submit(ask) for _ in range(4))]:
            done.result()
    assert {answer["version"] for _, _, answer in answers} == {1, 2}
    for sent, received, answer in answers:
        assert any(begin <= received and sent <= end for begin, end in live[answer["version"]])
        for result in answer["results"]:
            assert_answers(result, scores[answer["version"]])


def test_a_disk_that_hangs_does_not_hold_up_answers(server, client, expected):
    """More downloads than the registry has threads, of a file that does not come; texts too long for the event loop."""
    (task, text), _ = next(iter(expected.items()))
    long = f"{text} " * 40
    wanted = client.classify(task, long)["results"]
    digest = client.push("hanging", Task(seed=500).file)["digest"]

    def download(_):
        return httpx.get(f"{server.url}/v1/tasks/hanging/versions/1/delta", timeout=180).status_code

    with ThreadPoolExecutor(12) as pool:
        with _that_hangs(server.folder / "data" / "blobs" / digest.removeprefix("sha256:")):
            downloads = [pool.submit(download, number) for number in range(12)]
            wait_until(lambda: server.in_progress() == 13)
            assert client.classify(task, long)["results"] == wanted
            assert not any(done.done() for done in downloads)
        assert {done.result() for done in downloads} == {200}


@contextmanager
def _that_hangs(path):
    """A file that everybody else waits to open until the block ends: a lease, which Linux keeps for 45 s at most."""
    handle = os.open(path, os.O_RDWR)
    try:
        # The signal that somebody waits would end this process, but for one that is ignored by default.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(handle)


@layouts
def test_deleted_version_answers_who_holds_it_and_nobody_else(server, client, expected):
    """Versions are deleted, and their slots taken by others, while requests for them wait behind much other work."""
    kept, gone = Task(seed=301), Task(seed=302)
    client.push("shrinking", kept.file)
    scores = gone.scores(TEXTS[1])
    task, text = next(iter(expected))
    stopped = threading.Event()

    def keep_busy():
        with server.client() as own:
            while not stopped.is_set():
                own.fanout(text, [task] * 1024)

    def ask(ref, start):
        with server.client() as own:
            start.wait()
            while True:
                try:
                    answer = own.classify(ref, [TEXTS[1]] * 8)
                except VersionNotFound:
                    return
                for result in answer["results"]:
                    assert_answers(result, scores)

    with ThreadPoolExecutor(6) as pool:
        busy = [pool.submit(keep_busy) for _ in range(2)]
        try:
            for round_ in range(6):
                version = client.push("shrinking", gone.file)["version"]
                start = threading.Barrier(5)
                asked = [pool.submit(ask, f"shrinking@{version}", start) for _ in range(4)]
                start.wait()
                client.classify(task, text)
                client.delete_version("shrinking", version)
                client.push("slot-taker", Task(labels=5, seed=400 + round_).file)
                for done in asked:
                    done.result()
        finally:
            stopped.set()
        for done in busy:
            done.result()
    assert client.task("shrinking")["versions"][0]["version"] == 1
