"""All tasks in one reply: what each line says, who sees it, and that it costs no statement for each task."""

import numpy as np
import pytest

from runtimes import LIVE, WORK, ask, get, move, opened
from servers import Task, store
from stores import statements


def test_the_status_is_read_from_memory_in_pages(tmp_path):
    count = 7
    store(tmp_path, **{f"task-{number:02}": Task(seed=1) for number in range(count)})
    with opened(tmp_path) as runtime:
        # The follower may look for changes meanwhile.
        with statements() as seen:
            tasks = get(runtime, "/v1/status").json()["tasks"]
        assert [sql for sql in seen if "FROM versions" in sql or "FROM aliases" in sql] == []
        assert [task["name"] for task in tasks] == [f"task-{number:02}" for number in range(count)]
        pages, after = [], ""
        while after is not None:
            page = get(runtime, f"/v1/status?limit=2&after={after}").json()
            pages += page["tasks"]
            after = page["next"]
    assert [task["name"] for task in pages] == [task["name"] for task in tasks]


def test_each_task_has_its_traffic_and_what_cannot_be_loaded(tmp_path):
    store(tmp_path, broken=[Task(seed=1), Task(seed=2)], busy=Task(seed=3))
    with opened(tmp_path) as runtime:
        [bad] = [version for version in runtime.directory.versions() if version.entry.version == 2]
        runtime.directory.begin_loading(bad)
        runtime.directory.failed(bad, "its file is damaged", None)

        def statuses():
            return {task["name"]: task for task in get(runtime, "/v1/status").json()["tasks"]}

        before = statuses()
        quiet = ("a_minute", "p95", "shift", "alarm", "gate", "kept", "abstained", "cut")
        assert [before["busy"][name] for name in quiet] == [None] * len(quiet)
        assert [before[name]["live"]["version"] for name in ("busy", "broken")] == [1, 1]
        assert before["broken"]["unavailable"] == {"2": "its file is damaged"}
        for _ in range(11):
            assert ask(runtime, "POST", "/v1/tasks/busy/classify", json={"inputs": "it is late"}).is_success
        busy = statuses()["busy"]
        # Eleven requests within the first minute after the start.
        assert busy["a_minute"] == pytest.approx(11 * 60 / (300 * (1 - np.exp(-0.2))), rel=0.2)
        assert 0 < busy["p95"] <= 10
        assert busy["base"] == runtime.hosts[0].base.spec.name


def test_one_task_shows_its_aliases_their_moves_and_what_is_next(tmp_path):
    training = {"metric": "accuracy", "validation": {"accuracy": 0.75}, "folds": 5}
    store(tmp_path, tone=[Task(seed=1, training=training), Task(seed=2), Task(seed=3)])
    with opened(tmp_path) as runtime:

        def status():
            return get(runtime, "/v1/tasks/tone/status").json()

        first = status()
        assert first["score"] == {"metric": "accuracy", "value": 0.75, "where": "5 folds"}
        assert (first["last_move"]["what"], first["next"]) == ("new → 1", "onebert rollout tone --shadow 3")
        move(runtime, {"split": {"1": 90, "2": 10}, "shadow": [{"version": 3, "percent": 20}]})
        split = status()
        assert split["live"]["words"] == "90 % 1, 10 % 2, shadow 3 (20 %)"
        assert split["live"]["ends"] == ["split 90/10", "shadow 3"]
        assert split["aliases"] == [split["live"]]
        assert len(split["moves"]) == 2
        [listed] = get(runtime, "/v1/status").json()["tasks"]
        assert split["last_move"] == listed["last_move"] == split["moves"][0]


def test_the_status_says_what_a_rollback_goes_to(tmp_path):
    store(tmp_path, tone=[Task(seed=seed) for seed in range(1, 6)])
    with opened(tmp_path) as runtime:

        def live():
            return get(runtime, "/v1/tasks/tone/status").json()["live"]

        def tag():
            return get(runtime, LIVE).headers["etag"].strip('"')

        assert (live()["previous_words"], live()["ungated"]) == (None, [1])
        move(runtime, {"split": {"1": 60, "2": 40}, "shadow": [{"version": 3}]})
        move(runtime, {"version": 4}, tag())
        split = live()
        assert (split["previous"], split["previous_words"]) == (1, "60 % 1, 40 % 2, shadow 3")
        assert split["previous_target"].items() <= get(runtime, LIVE).json()["previous_target"].items()
        assert split["ungated"] == [1, 2, 4]
        runtime.catalog.delete_version("tone", 3, WORK)
        assert live()["previous_words"] == "60 % 1, 40 % 2"
        runtime.catalog.delete_version("tone", 2, WORK)
        assert (live()["previous_words"], live()["previous_target"], live()["ungated"]) == ("1", None, [1, 4])
        runtime.catalog.delete_version("tone", 1, WORK)
        assert (live()["previous"], live()["previous_words"]) == (None, None)
        assert get(runtime, LIVE).json()["previous"] is None
        assert get(runtime, "/v1/tasks/tone?limit=1").json()["previous"] == {}


@pytest.mark.parametrize(
    ("kind", "advice", "code"), [("regression", None, 422), ("token", "onebert rollout tone --shadow 2", 200)]
)
def test_the_next_step_is_a_shadow_where_there_may_be_one(tmp_path, kind, advice, code):
    pooling = "none" if kind == "token" else "mean"
    store(tmp_path, tone=[Task(pooling=pooling, seed=seed, task_type=kind) for seed in (1, 2)])
    with opened(tmp_path) as runtime:
        assert get(runtime, "/v1/tasks/tone/status").json()["next"] == advice
        assert move(runtime, {"version": 1, "shadow": [{"version": 2}]}, status=code)
