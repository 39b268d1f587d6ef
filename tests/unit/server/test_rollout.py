"""Splits of a replica: who is answered by which version, and when its shadows are in memory."""

import asyncio
from dataclasses import replace

import pytest

from onebert_server.access.keys import KeyRing
from onebert_server.answering.gateway import Wanted
from onebert_server.remote import gateway
from onebert_server.versions.choice import place_of
from onebert_server.versions.version import State
from onebert_store.errors import VersionInUse
from onebert_store.registry.target import Target
from parts import context
from remote_engine import remote_engine
from runtimes import LIVE, TASKS, WORK, ask, get, move, opened, opened_with_tasks, upload
from servers import Task, store

ALL = Wanted(None)
SPLIT = {"split": {"1": 60, "2": 40}, "sticky": "header:X-User"}


@pytest.fixture
def runtime(tmp_path):
    with opened_with_tasks(tmp_path) as runtime:
        yield runtime


def tag(runtime):
    return get(runtime, LIVE).headers["etag"].strip('"')


def test_a_split_moves_and_goes_back_as_a_whole(runtime):
    first = move(runtime, SPLIT | {"shadow": [{"version": 3, "percent": 10}]})
    assert ask(runtime, "PUT", LIVE, json={"version": 2}, headers={"If-Match": '"1"'}).status_code == 412
    second = move(runtime, {"version": 2}, tag(runtime))
    assert (second["version"], second["previous"], second["previous_target"]) == (2, 1, None)
    assert second.pop("what") == "split 60/40 → 2 alone, shadow 3 ended"
    assert move(runtime, {"version": 2}, "2") == second | {"what": None}, "the same meaning changes nothing"
    third = move(runtime, {"version": 3}, "2")
    assert (third["previous"], third["previous_target"]) == (2, None)
    back = {name: value for name, value in first["target"].items() if name != "tag"}
    assert move(runtime, back, "3")["target"] == first["target"]
    listed = get(runtime, "/v1/tasks").json()["tasks"][0]
    assert (listed["aliases"], listed["targets"]["live"]) == ({"live": 1}, first["target"])
    targets = [change.get("target") for change in get(runtime, "/v1/audit?task=tone").json()["changes"]]
    assert targets == [None, None, None, first["target"], None, None, first["target"]]


def test_versions_of_a_meaning_are_not_deleted(runtime):
    move(runtime, {"split": {"1": 90, "2": 10}, "shadow": [{"version": 3}]})
    for number in (1, 2, 3):
        with pytest.raises(VersionInUse, match="has the alias live"):
            runtime.catalog.delete_version("tone", number, WORK)
    assert {version.state for version in runtime.directory.versions()} == {State.RESIDENT}


def test_a_split_survives_a_restart(tmp_path):
    with opened(tmp_path) as runtime:
        for task in TASKS:
            upload(runtime, "tone", task)
        target = move(runtime, {"split": {"1": 90, "3": 10}, "shadow": [{"version": 2}]})["target"]
    with opened(tmp_path) as runtime:
        assert get(runtime, LIVE).json()["target"] == target
        assert [version.entry.version for version in runtime.directory.aliased()] == [1, 3, 2]


def test_a_question_may_choose_by_many_headers(tmp_path, monkeypatch):
    """Each task by another header; a front end learns the names from one refusal, and keeps the latest."""
    monkeypatch.setattr(gateway, "MAX_HEADERS", 3)
    names = [f"task{number}" for number in range(7)]
    store(tmp_path, **dict.fromkeys(names, TASKS[:2]))
    with opened(tmp_path) as runtime:
        for number, name in enumerate(names):
            to = Target(((1, 50), (2, 50)), f"header:X-{number}")
            runtime.catalog.move_alias(name, "live", to, "1", WORK)
        users = {f"x-{number}": f"user{number}".encode() for number in range(len(names))}
        asks = replace(context(), header=users.get)

        async def asked():
            async with remote_engine(runtime.admission, KeyRing({}), str(tmp_path / "engine")) as remote:
                for _ in range(2):
                    yield {
                        resolved.facts.task: resolved.facts.version
                        for resolved in await remote.gateway.resolve(asks, ALL)
                    }

        async def both():
            return [version async for version in asked()]

        expected = {
            name: 2 if place_of(name, f"user{number}".encode()) <= 50 else 1 for number, name in enumerate(names)
        }
        assert asyncio.run(both()) == [expected, expected]


def test_numbers_have_no_shadow(tmp_path):
    with opened(tmp_path) as runtime:
        for seed in (1, 2):
            upload(runtime, "tone", Task(seed=seed, task_type="regression", labels=["degree"]))
        refused = move(runtime, {"version": 1, "shadow": [{"version": 2}]}, status=422)
        assert "labels are compared" in refused["detail"]
