"""The column of new feedback in the list of all tasks, and who sees it."""

import asyncio

from runtimes import ask, get, move, opened, upload
from servers import Task, store
from tenants import Asker, tenants_runtime


def test_feedback_is_new_until_a_version_made_after_it_is_live(tmp_path):
    store(tmp_path, tone=Task(labels=2, seed=1), other=Task(labels=2, seed=1))
    with opened(tmp_path) as runtime:

        def new():
            return {task["name"]: task["feedback"] for task in get(runtime, "/v1/status").json()["tasks"]}

        def give(*identifiers):
            data = [{"task": "tone", "text": "late", "label": "label 1", "identifier": name} for name in identifiers]
            assert ask(runtime, "POST", "/v1/feedback", json={"data": data}).status_code == 200

        assert new() == {"other": 0, "tone": 0}
        give("one", "two")
        assert new() == {"other": 0, "tone": 2}
        upload(runtime, "tone", Task(labels=2, seed=2))
        assert new() == {"other": 0, "tone": 2}
        move(runtime, {"version": 2})
        give("three")
        assert new() == {"other": 0, "tone": 1}


def test_a_key_sees_new_feedback_of_the_tasks_that_it_may_review(tmp_path):
    with tenants_runtime(tmp_path) as runtime:
        asker = Asker(runtime)

        def new(key):
            tasks = asyncio.run(asker.ask(key, "GET", "/v1/status")).json()["tasks"]
            return {task["name"]: task["feedback"] for task in tasks}

        data = [{"task": "acme-tone", "text": "late", "label": "label 1", "identifier": "one"}]
        asyncio.run(asker.ask("key-of-acme", "POST", "/v1/feedback", json={"data": data}))
        assert new("key-of-acme") == {"acme-tone": 1, "acme-two1": 0}
        assert new("key-of-blue") == {"blue-tone": 0}
        assert new("key-to-classify") == {"acme-tone": None, "acme-two1": None}
