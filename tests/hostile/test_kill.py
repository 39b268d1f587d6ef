"""Processes killed while they add versions: what was acknowledged is there, nothing else is left behind."""

import multiprocessing
import os
import random
import signal
from datetime import UTC, datetime, timedelta

import pytest

from adding_process import add_and_die, add_for_ever
from onebert_store.file.format import loads
from onebert_store.registry.records import Alias
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from onebert_store.registry.target import alone
from onebert_store.upkeep import gc
from tiny_delta import make_delta

pytestmark = pytest.mark.slow

# The fork server imports once, so that a child costs milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["onebert_store.registry.registry"])

STEPS = [
    ("os", "fsync", 1, "before"),
    ("os", "fsync", 1, "after"),
    ("os", "replace", 1, "before"),
    ("os", "replace", 1, "after"),
    ("os", "fsync", 2, "after"),
    ("row", "commit", 1, "before"),
]


def check_store(place, acknowledged):
    """Re-opens the store: every acknowledged version is readable, every row has its blob; a sweep leaves no more."""
    with Registry.open(place) as registry:
        entries = registry.entries()
        for entry in entries:
            assert loads(registry.read(entry)).digest == entry.digest
        assert acknowledged <= {(entry.task, entry.version, entry.digest) for entry in entries}
        with join_store(place) as store:
            gc.sweep(store, timedelta(0))
            store.blobs.drop_unfinished(datetime.now(UTC))
        lines = {entry.digest.removeprefix("sha256:") for entry in entries}
        assert {path.name for path in (place.folder / "blobs").iterdir()} == lines
        for task in registry.tasks():
            assert task.aliases == {"live": Alias(alone(1))}
            assert task.versions == tuple(range(1, len(task.versions) + 1))
    return entries


@pytest.mark.parametrize("seed", range(10))
def test_acknowledged_versions_survive_kill_9(place, seed):
    chance = random.Random(seed)
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=add_for_ever, args=(place, seed, sender))
    process.start()
    sender.close()
    acknowledged = {receiver.recv() for _ in range(chance.randrange(1, 10))}
    # A few system calls later it is somewhere inside the next addition.
    for _ in range(chance.randrange(10_000)):
        os.getpid()
    process.kill()
    process.join()
    try:
        while True:
            acknowledged.add(receiver.recv())
    except EOFError:
        receiver.close()
    assert process.exitcode == -signal.SIGKILL
    process.close()
    check_store(place, acknowledged)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: "-".join(map(str, step)))
def test_a_kill_at_any_step_leaves_all_or_nothing(place, step):
    with Registry.open(place) as registry:
        record, _ = registry.add("task", make_delta(1))
    process = CONTEXT.Process(target=add_and_die, args=(place, step))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    process.close()
    (entry,) = check_store(place, set())
    assert (entry.task, entry.version, entry.digest) == (record.task, record.version, record.digest)
    with Registry.open(place) as registry:
        again, created = registry.add("task", make_delta(2))
        assert (again.version, created) == (2, True)
