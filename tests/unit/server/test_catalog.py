"""Registry and directory in step: what was deleted is gone from both, also where the registry failed after it."""

import asyncio

import httpx
import pytest

from bases import tiny_base
from onebert_server.app import create_app
from onebert_server.runtime import open_runtime
from onebert_server.settings import load_settings
from onebert_store.errors import StorageFull, StorageUnavailable, TaskNotFound, VersionNotFound
from onebert_store.file.format import loads
from servers import Task


@pytest.fixture
def runtime(tmp_path):
    with open_runtime(load_settings(base=str(tiny_base()), dtype="float32", threads=1, data_dir=tmp_path)) as opened:
        upload(opened, 1)
        upload(opened, 2)
        yield opened


def upload(runtime, seed):
    with runtime.registry.writer() as body:
        body.write(Task(seed=seed).file)
        return runtime.catalog.upload("task", body)


def fails(monkeypatch, runtime, method, after):
    """The disk fails in a call of the registry: after the change was made, or before."""
    change = getattr(runtime.registry, method)

    def failing(*arguments):
        if after:
            change(*arguments)
        raise StorageUnavailable("the disk does not answer")

    monkeypatch.setattr(runtime.registry, method, failing)


def ready(runtime):
    async def get():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(runtime))) as web:
            return await web.get("http://localhost/readyz")

    answer = asyncio.run(get())
    return answer.status_code, answer.json()["storage"]


@pytest.mark.parametrize("after", [True, False], ids=["after the commit", "before it"])
def test_a_deletion_that_failed_leaves_a_version_in_memory_only_if_it_is_in_the_registry(runtime, monkeypatch, after):
    fails(monkeypatch, runtime, "delete_version", after)
    with pytest.raises(StorageUnavailable):
        runtime.catalog.delete_version("task", 2)
    assert runtime.registry.task("task").versions == ((1,) if after else (1, 2))
    if after:
        with pytest.raises(VersionNotFound):
            runtime.directory.pin(["task@2"], "test")
    else:
        runtime.directory.unpin(runtime.directory.pin(["task@2"], "test"))


@pytest.mark.parametrize("after", [True, False], ids=["after the commit", "before it"])
def test_a_deletion_that_failed_leaves_a_task_in_memory_only_if_it_is_in_the_registry(runtime, monkeypatch, after):
    fails(monkeypatch, runtime, "delete_task", after)
    with pytest.raises(StorageUnavailable):
        runtime.catalog.delete_task("task")
    assert len(runtime.registry.tasks()) == (0 if after else 1)
    if after:
        with pytest.raises(TaskNotFound):
            runtime.directory.pin(["task"], "test")
    else:
        runtime.directory.unpin(runtime.directory.pin(["task"], "test"))


def test_a_task_that_memory_does_not_know_is_deleted_all_the_same(runtime):
    runtime.registry.add("unknown", loads(Task(seed=3).file))
    runtime.catalog.delete_task("unknown")
    assert [task.name for task in runtime.registry.tasks()] == ["task"]
    with pytest.raises(TaskNotFound):
        runtime.catalog.delete_task("unknown")


def test_readiness_says_whether_the_disk_took_the_last_change(runtime, monkeypatch):
    assert ready(runtime) == (200, "ok")
    with monkeypatch.context() as disk:
        disk.setattr(runtime.registry, "delete_version", lambda *_: _raise(StorageFull("there is no room")))
        with pytest.raises(StorageFull):
            runtime.catalog.delete_version("task", 2)
    assert ready(runtime) == (200, "storage-full")
    with pytest.raises(VersionNotFound):
        runtime.catalog.delete_version("task", 9)
    assert ready(runtime) == (200, "storage-full")  # the disk was asked for nothing
    runtime.catalog.delete_version("task", 2)
    assert ready(runtime) == (200, "ok")


def _raise(error):
    raise error
