"""The gates in the list of all tasks: one statement reads them, and only keys that may move aliases see them."""

import asyncio

import pytest

from runtimes import ask, get, opened
from servers import Task, store
from stores import statements
from tenants import ROOT_KEY, Asker, tenants_runtime

RULES = {"must": [{"text": "a text", "label": "label 1"}]}


@pytest.mark.parametrize("count", [3, 60])
def test_the_gates_of_a_fleet_of_any_size_cost_one_statement(tmp_path, count):
    names = [f"task-{number:02}" for number in range(count)]
    store(tmp_path, **dict.fromkeys(names, Task(seed=1)))
    with opened(tmp_path) as runtime:
        assert ask(runtime, "PUT", "/v1/tasks/task-01/gate", json={"rules": RULES}).status_code == 200
        with statements() as seen:
            tasks = get(runtime, "/v1/status").json()["tasks"]
        gate = get(runtime, "/v1/tasks/task-01/status").json()["gate"]
    assert len([sql for sql in seen if "FROM documents" in sql]) == 1
    counts = {"aliases": None, "rows": None, "checks": None}
    assert {task["name"]: task["gate"] for task in tasks} == dict.fromkeys(names) | {"task-01": counts}
    assert gate == {"aliases": ["live"], "rows": 0, "checks": 1}


def test_a_key_sees_the_gates_that_it_may_pass(tmp_path):
    with tenants_runtime(tmp_path) as runtime:
        asker = Asker(runtime)
        for task in ("acme-tone", "blue-tone"):
            put = asker.ask(ROOT_KEY, "PUT", f"/v1/tasks/{task}/gate", json={"rules": RULES})
            assert asyncio.run(put).status_code == 200
        there = {"aliases": None, "rows": None, "checks": None}

        def gates(key):
            tasks = asyncio.run(asker.ask(key, "GET", "/v1/status")).json()["tasks"]
            return {task["name"]: task["gate"] for task in tasks}

        assert gates("key-of-acme") == {"acme-tone": there, "acme-two1": None}
        assert gates("key-of-blue") == {"blue-tone": there}
        assert gates("key-to-classify") == {"acme-tone": None, "acme-two1": None}
