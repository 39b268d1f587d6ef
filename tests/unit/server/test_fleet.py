"""All tasks in one reply: what each line says, who sees it, and that it costs one statement."""

import asyncio
from contextlib import contextmanager
from itertools import cycle

import numpy as np
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from onebert_server.extensions.watching.watch import Watch
from onebert_server.extensions.watching.windows import WINDOW
from onebert_store.file.manifest import parse_manifest
from onebert_training.fit.reference import reference_of
from runtimes import ask, client, get, opened, upload
from servers import Task, store, wait_until
from tenants import Asker, tenants_runtime
from trainings import THINGS

ROWS = 300
RULES = {"must": [{"text": "a text", "label": "label 1"}]}
TEXTS = [
    f"the {thing} was {word} {when}" for thing in THINGS for word in ("good", "bad", "late") for when in ("now", "")
]


@contextmanager
def statements():
    """The statements of all databases while the block runs."""
    seen = []

    def note(_, __, statement, *___):
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("count", [3, 60])
def test_a_fleet_of_any_size_costs_one_statement(tmp_path, count):
    store(tmp_path, **{f"task-{number:02}": Task(seed=1) for number in range(count)})
    with opened(tmp_path) as runtime, statements() as seen:
        # The follower may look for changes meanwhile.
        found = get(runtime, "/v1/fleet").json()
        assert len([statement for statement in seen if "FROM documents" in statement]) == 1
        assert [one for one in seen if "FROM versions" in one or "FROM aliases" in one] == []
    assert [one["name"] for one in found["tasks"]] == [f"task-{number:02}" for number in range(count)]
    pages, after = [], ""
    with opened(tmp_path) as runtime:
        while after is not None:
            page = get(runtime, f"/v1/fleet?limit=2&after={after}").json()
            pages += page["tasks"]
            after = page["next"]
    assert [one["name"] for one in pages] == [one["name"] for one in found["tasks"]]


def test_each_task_says_what_needs_attention(tmp_path):
    watched = Task(labels=2, seed=7)
    logits = {text: watched.logits(text).astype(np.float32) for text in TEXTS}
    one, other = ([text for text in TEXTS if logits[text].argmax() == label] for label in (0, 1))
    of = cycle(one), cycle(other)
    rows = [next(of[place % 10 < 2]) for place in range(ROWS)]
    answered = [logits[text] for text in rows]
    gold = np.array([found.argmax() ^ (place % 10 == 7) for place, found in enumerate(answered)])
    reference = reference_of(parse_manifest(watched.manifest), answered, gold, "validation")
    watched.manifest |= {"format": 3, "reference": reference.model_dump()}
    store(tmp_path, broken=[Task(seed=1), Task(seed=2)])
    with opened(tmp_path) as runtime:
        upload(runtime, "shifted", watched)
        [bad] = [version for version in runtime.directory.versions() if version.entry.version == 2]
        runtime.directory.begin_loading(bad)
        runtime.directory.failed(bad, "its file is damaged", None)

        def fleet():
            return {one["name"]: one for one in get(runtime, "/v1/fleet").json()["tasks"]}

        quiet = fleet()["shifted"]
        assert quiet.items() >= {"live": 1, "a_minute": None, "p95": None, "shift": None, "alarm_since": None}.items()
        assert fleet()["broken"].items() >= {"live": 1, "unavailable": {"2": "its file is damaged"}}.items()

        async def asked(texts):
            async with client(runtime) as web:
                for start in range(0, len(texts), 50):
                    body = {"inputs": texts[start : start + 50]}
                    await web.post("/v1/tasks/shifted/classify", json=body)

        asyncio.run(asked(one[:1]))
        wait_until(lambda: (seen := runtime.parts[Watch].of("shifted", 1)) is not None and seen.window is not None)
        asyncio.run(asked([text for text, _ in zip(cycle(other), range(WINDOW), strict=False)]))
        wait_until(lambda: fleet()["shifted"]["alarm_since"] is not None)
        shifted = fleet()["shifted"]
        assert shifted["shift"] == {"label": "label 0", "reference": 0.8, "live": 0.0}
        # Eleven requests within the first minute after the start.
        assert shifted["a_minute"] == pytest.approx(11 * 60 / (300 * (1 - np.exp(-0.2))), rel=0.2)
        assert 0 < shifted["p95"] <= 10
        assert shifted["base"] == runtime.hosts[0].base.spec.name
        assert ask(runtime, "PUT", "/v1/tasks/shifted/gate", json={"rules": RULES}).status_code == 200
        assert {name: found["gate"] for name, found in fleet().items()} == {"broken": False, "shifted": True}


def test_a_key_sees_its_own_tasks_and_the_gates_that_it_may_pass(tmp_path):
    with tenants_runtime(tmp_path) as runtime:
        asker = Asker(runtime)

        def gates(key):
            found = asyncio.run(asker.ask(key, "GET", "/v1/fleet"))
            return {task["name"]: task["gate"] for task in found.json()["tasks"]}

        assert gates("key-of-acme") == {"acme-tone": False, "acme-two1": False}
        assert gates("key-of-blue") == {"blue-tone": False}
        assert gates("key-of-nobody") == {}
        assert gates("key-to-classify") == {"acme-tone": None, "acme-two1": None}
