"""The gates in the list of all tasks: one statement reads them, and only keys that may move aliases see them."""

import asyncio

import pytest

from runtimes import ask, get, opened
from servers import Task, store
from stores import statements
from tenants import Asker, tenants_runtime

RULES = {"must": [{"text": "a text", "label": "label 1"}]}


@pytest.mark.parametrize("count", [3, 60])
def test_the_gates_of_a_fleet_of_any_size_cost_one_statement(tmp_path, count):
    names = [f"task-{number:02}" for number in range(count)]
    store(tmp_path, **dict.fromkeys(names, Task(seed=1)))
    with opened(tmp_path) as runtime:
        assert ask(runtime, "PUT", "/v1/tasks/task-01/gate", json={"rules": RULES}).status_code == 200
        with statements() as seen:
            tasks = get(runtime, "/v1/fleet").json()["tasks"]
    assert len([sql for sql in seen if "FROM documents" in sql]) == 1
    assert {task["name"]: task["gate"] for task in tasks} == {name: name == "task-01" for name in names}


def test_a_key_sees_the_gates_that_it_may_pass(tmp_path):
    with tenants_runtime(tmp_path) as runtime:
        asker = Asker(runtime)

        def gates(key):
            tasks = asyncio.run(asker.ask(key, "GET", "/v1/fleet")).json()["tasks"]
            return {task["name"]: task["gate"] for task in tasks}

        assert gates("key-of-acme") == {"acme-tone": False, "acme-two1": False}
        assert gates("key-of-blue") == {"blue-tone": False}
        assert gates("key-to-classify") == {"acme-tone": None, "acme-two1": None}
