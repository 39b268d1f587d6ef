"""Registry and directory in step: what was deleted is gone from both, also where the registry failed after it."""

import asyncio
import math
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from onebert_encoder.answering.asked import Asked
from onebert_server.access.context import own_work
from onebert_server.answering.gateway import Wanted
from onebert_store.errors import DeadlineExceeded, StorageFull, StorageUnavailable, VersionNotFound
from onebert_store.file.format import loads
from onebert_store.registry.feed import Feed
from onebert_store.registry.target import alone
from runtimes import WORK, ask, get, opened, upload
from servers import Task, wait_until

TEXT = "the screen was broken"


@pytest.fixture
def runtime(tmp_path):
    with opened(tmp_path) as runtime:
        upload(runtime, "task", Task(seed=1))
        upload(runtime, "task", Task(seed=2))
        yield runtime


def scores(runtime, *refs):
    """The logits that the first reference gives for the text; those of all others are the same."""
    wanted = Wanted(refs, asked=Asked(activation="none"))
    asking = runtime.answerer.answer(
        own_work("test"), wanted, [TEXT], lambda _, answered: answered.read().answer.scores
    )
    first, *others = asyncio.run(asking)
    for answered in others:
        assert answered == pytest.approx(first, abs=1e-4)
    return first


def fails(monkeypatch, runtime, method, after):
    """The disk fails in a call of the registry: after the change was made, or before."""
    change = getattr(runtime.registry, method)

    def failing(*arguments):
        if after:
            change(*arguments)
        raise StorageUnavailable("the disk does not answer")

    monkeypatch.setattr(runtime.registry, method, failing)


def put(runtime, path, body):
    return ask(runtime, "PUT", path, json=body, headers={"If-None-Match": "*"})


def ready(runtime):
    answer = get(runtime, "/readyz")
    return answer.status_code, answer.json()["storage"]


def test_readiness_tells_nothing_of_tenants_where_there_are_keys(runtime):
    """The path takes no key."""
    assert get(runtime, "/readyz").json().keys() > {"status", "storage", "seq", "age", "tasks"}
    runtime.keys.replace({}, is_open=False)
    assert get(runtime, "/readyz").json() == {"status": "ready", "storage": "ok"}


AFTER = pytest.mark.parametrize("after", [True, False], ids=["after the commit", "before it"])


def numbers(tasks):
    return {task.name: tuple(task.versions) for task in tasks}


@AFTER
@pytest.mark.parametrize(
    ("method", "what", "left"),
    [("delete_version", ("task", 2), {"task": (1,)}), ("delete_task", ("task",), {})],
    ids=["a version", "a task"],
)
def test_a_failed_deletion_leaves_memory_as_the_registry(runtime, monkeypatch, method, what, left, after):
    fails(monkeypatch, runtime, method, after)
    with pytest.raises(StorageUnavailable):
        getattr(runtime.catalog, method)(*what, WORK)
    there = left if after else {"task": (1, 2)}
    assert numbers(runtime.registry.tasks()) == numbers(runtime.directory.tasks("", 9)) == there


@AFTER
def test_a_failed_upload_leaves_memory_as_the_registry(runtime, monkeypatch, after):
    with monkeypatch.context() as disk:
        fails(disk, runtime, "add_stored", after)
        for task in ("task", "other"):
            with pytest.raises(StorageUnavailable):
                upload(runtime, task, Task(seed=3))
    there = {"task": (1, 2, 3), "other": (1,)} if after else {"task": (1, 2)}
    assert numbers(runtime.registry.tasks()) == numbers(runtime.directory.tasks("", 9)) == there
    assert upload(runtime, "task", Task(seed=3))[0].version == 3
    if after:
        assert scores(runtime, "task@3", "other") == pytest.approx(Task(seed=3).logits(TEXT).ravel(), abs=1e-4)
        assert runtime.catalog.move_alias("other", "canary", alone(1), None, WORK)[0].version == 1


def test_a_published_version_keeps_its_row(runtime, monkeypatch):
    storing = runtime.registry.storing

    @contextmanager
    def failing(*arguments):
        with storing(*arguments) as size:
            yield size
        raise StorageUnavailable("the disk does not answer")

    with monkeypatch.context() as disk:
        disk.setattr(runtime.registry, "storing", failing)
        with pytest.raises(StorageUnavailable):
            upload(runtime, "task", Task(seed=3))
    upload(runtime, "task", Task(seed=4))
    for seed in (3, 4):
        assert scores(runtime, f"task@{seed}") == pytest.approx(Task(seed=seed).logits(TEXT).ravel(), abs=1e-4)


def test_an_alias_moves_to_another_replicas_version(runtime):
    """Over HTTP, so that it is looked for, loaded and then moved."""
    for task in ("task", "unknown"):
        record, _ = runtime.registry.add(task, loads(Task(seed=3).file))
        moved = put(runtime, f"/v1/tasks/{task}/aliases/canary", {"version": record.version})
        assert (moved.status_code, moved.json()["version"]) == (200, record.version)
        assert scores(runtime, f"{task}@canary") == pytest.approx(Task(seed=3).logits(TEXT).ravel(), abs=1e-4)


def test_readiness_says_whether_the_disk_took_the_last_change(runtime, monkeypatch):
    assert ready(runtime) == (200, "ok")
    with monkeypatch.context() as disk:
        disk.setattr(runtime.registry, "delete_version", lambda *_: _raise(StorageFull("there is no room")))
        with pytest.raises(StorageFull):
            runtime.catalog.delete_version("task", 2, WORK)
    assert ready(runtime) == (200, "storage-full")
    with pytest.raises(VersionNotFound):
        runtime.catalog.delete_version("task", 9, WORK)
    assert ready(runtime) == (200, "storage-full")  # the disk was asked for nothing
    runtime.catalog.delete_version("task", 2, WORK)
    assert ready(runtime) == (200, "ok")


def test_a_registry_that_can_be_read_again_is_well(runtime, monkeypatch):
    """As where `open` fails for a while."""
    with monkeypatch.context() as disk:
        disk.setattr(Feed, "last", lambda _: _raise(StorageUnavailable("the database cannot be opened")))
        assert put(runtime, "/v1/tasks/task/aliases/canary", {"version": 1}).status_code == 503
        assert ready(runtime) == (200, "storage-unavailable")
    wait_until(lambda: ready(runtime) == (200, "ok"))


def test_a_change_waits_no_longer_than_its_deadline(runtime):
    with runtime.catalog._changing(math.inf), pytest.raises(DeadlineExceeded, match="nothing is changed"):
        runtime.catalog.delete_task("task", replace(WORK, deadline=time.monotonic() + 0.01))
    assert list(runtime.registry.tasks()[0].versions) == [1, 2]
    runtime.catalog.delete_task("task", WORK)
    assert list(runtime.registry.tasks()) == []


def _raise(error):
    raise error
