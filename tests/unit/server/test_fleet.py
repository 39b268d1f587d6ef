"""All tasks in one reply: what each line says, who sees it, and that it costs no statement for each task."""

import asyncio

import numpy as np
import pytest

from runtimes import ask, get, opened
from servers import Task, store
from stores import statements
from tenants import Asker, tenants_runtime


@pytest.mark.parametrize("count", [3, 60])
def test_a_fleet_of_any_size_is_read_from_memory_in_pages(tmp_path, count):
    store(tmp_path, **{f"task-{number:02}": Task(seed=1) for number in range(count)})
    with opened(tmp_path) as runtime:
        # The follower may look for changes meanwhile.
        with statements() as seen:
            tasks = get(runtime, "/v1/fleet").json()["tasks"]
        assert [sql for sql in seen if "FROM versions" in sql or "FROM aliases" in sql] == []
        assert [task["name"] for task in tasks] == [f"task-{number:02}" for number in range(count)]
        pages, after = [], ""
        while after is not None:
            page = get(runtime, f"/v1/fleet?limit=2&after={after}").json()
            pages += page["tasks"]
            after = page["next"]
    assert [task["name"] for task in pages] == [task["name"] for task in tasks]


def test_each_task_has_its_traffic_and_what_cannot_be_loaded(tmp_path):
    store(tmp_path, broken=[Task(seed=1), Task(seed=2)], busy=Task(seed=3))
    with opened(tmp_path) as runtime:
        [bad] = [version for version in runtime.directory.versions() if version.entry.version == 2]
        runtime.directory.begin_loading(bad)
        runtime.directory.failed(bad, "its file is damaged", None)

        def fleet():
            return {task["name"]: task for task in get(runtime, "/v1/fleet").json()["tasks"]}

        before = fleet()
        quiet = {"live": 1, "a_minute": None, "p95": None, "shift": None, "alarm_since": None}
        assert before["busy"].items() >= quiet.items()
        assert before["broken"].items() >= {"live": 1, "unavailable": {"2": "its file is damaged"}}.items()
        for _ in range(11):
            assert ask(runtime, "POST", "/v1/tasks/busy/classify", json={"inputs": "it is late"}).is_success
        busy = fleet()["busy"]
        # Eleven requests within the first minute after the start.
        assert busy["a_minute"] == pytest.approx(11 * 60 / (300 * (1 - np.exp(-0.2))), rel=0.2)
        assert 0 < busy["p95"] <= 10
        assert busy["base"] == runtime.hosts[0].base.spec.name


def test_a_key_sees_its_own_tasks(tmp_path):
    with tenants_runtime(tmp_path) as runtime:
        asker = Asker(runtime)

        def names(key):
            return [task["name"] for task in asyncio.run(asker.ask(key, "GET", "/v1/fleet")).json()["tasks"]]

        assert names("key-of-acme") == ["acme-tone", "acme-two1"]
        assert names("key-of-blue") == ["blue-tone"]
        assert names("key-of-nobody") == []
        assert names("key-to-classify") == ["acme-tone", "acme-two1"]
