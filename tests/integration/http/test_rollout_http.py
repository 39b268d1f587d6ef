"""Splits and shadows over real processes: front ends send the header that decides, a kill loses no meaning."""

import json
from contextlib import suppress
from threading import Thread

import httpx
import pytest

from onebert_server.versions.choice import place_of
from servers import Task, assert_answers, both_layouts, wait_until

TASKS = [Task(seed=seed) for seed in (1, 2, 3)]
STORED = {"tone": TASKS, "mood": TASKS}
TEXT = "the screen was broken"
SPLIT = {"split": {"1": 60, "2": 40}, "sticky": "header:X-User"}


def move(client, task, body):
    path = f"/v1/tasks/{task}/aliases/live"
    tag = client.send("GET", path).headers["etag"]
    return client.send("PUT", path, json=body, headers={"If-Match": tag}).json()


def version_of(task, user):
    return 2 if place_of(task, user.encode()) <= 40 else 1


@both_layouts
def test_each_user_has_one_version_whichever_process_takes_the_request(server, client):
    move(client, "tone", SPLIT)
    for user in ["7", "anna", "José", *map(str, range(12))]:
        headers = {"X-User": user.encode()}
        with server.client() as own:
            path = "/v1/tasks/tone/classify"
            found = own.send("POST", path, json={"inputs": TEXT}, headers=headers).json()
            assert found["version"] == version_of("tone", user)
            assert_answers(found["results"][0], TASKS[found["version"] - 1].scores(TEXT))
            items = {"items": [{"task": "tone", "text": TEXT}, {"task": "gone", "text": TEXT}], "partial": True}
            one, gone = own.send("POST", "/v1/classify", json=items, headers=headers).json()["results"]
            assert (one["version"], gone["error"]["code"]) == (found["version"], "task-not-found")


@both_layouts
def test_two_tasks_of_one_request_choose_by_two_headers(server, client):
    move(client, "tone", SPLIT)
    move(client, "mood", SPLIT | {"sticky": "header:X-Session"})
    for user in map(str, range(8)):
        headers = {"X-User": user, "X-Session": f"s{user}"}
        with server.client() as own:
            found = own.send("POST", "/v1/fanout", json={"text": TEXT, "tasks": ["*"]}, headers=headers).json()
        versions = {one["task"]: one["version"] for one in found["results"]}
        assert versions == {"tone": version_of("tone", user), "mood": version_of("mood", f"s{user}")}


@pytest.mark.slow
def test_a_killed_server_has_the_whole_meaning_again_and_goes_back_as_a_whole(server, client, onebert):
    def rollout(*options):
        code, out, err = onebert("rollout", "mood", *options, "--url", server.url)
        assert (code, err) == (0, "")
        return out

    first = rollout("--split", "1=70,2=30", "--sticky", "principal", "--shadow", "3=50")
    assert "70 % 1, 30 % 2 by principal, shadow 3 (50 %)" in first
    assert "onebert promote mood --rollback" in first
    assert onebert("promote", "mood", "2", "--url", server.url)[0] == 0
    server.kill()
    server.start()
    code, out, _ = onebert("promote", "mood", "--rollback", "--url", server.url)
    assert code == 0
    assert "mood@live: 2 → 70 % 1, 30 % 2 by principal, shadow 3 (50 %)" in out
    with server.client() as own:
        for _ in range(20):
            own.classify("mood", TEXT)
    # One part is replaced, and the others stay.
    assert "70 % 1, 30 % 2 by principal, shadow 3 (100 %)" in rollout("--shadow", "3")
    assert "80 % 1, 20 % 2 by principal, shadow 3 (100 %)" in rollout("--split", "1=80,2=20")
    assert "80 % 1, 20 % 2 by principal\n" in rollout("--shadow", "none")
    rollout("--split", "1=70,2=30", "--shadow", "3=50")
    record = json.loads(rollout("--json"))
    assert record["target"].items() >= {"split": {"1": 70, "2": 30}, "sticky": "principal"}.items()
    wait_until(lambda: sum(one["answers"] for one in json.loads(rollout("--json"))["shadows"]) > 0)
    assert "answers alike" in rollout()
    assert "70 % 1" in onebert("tasks", "--url", server.url)[1]
    assert "70 % 1" in onebert("log", "mood", "--url", server.url)[1]
    assert onebert("alias", "mood", "live", "--remove", "--url", server.url)[0] == 0


@both_layouts
def test_the_slider_of_a_blend_moves_everyone(server, onebert):
    with server.client() as own:
        move(own, "tone", {"version": 1})
        code, out, err = onebert("rollout", "tone", "--blend", "1=0.8,2=0.2", "--url", server.url)
        assert (code, err) == (0, "")
        assert out.startswith("tone@live: 1 → 4\n")
        found = own.send("POST", "/v1/tasks/tone/classify", json={"inputs": TEXT}).json()
    assert found["version"] == 4
    mean = Task()
    mean.tensors = {name: 0.8 * one + 0.2 * TASKS[1].tensors[name] for name, one in TASKS[0].tensors.items()}
    assert_answers(found["results"][0], mean.scores(TEXT))
    assert onebert("promote", "tone", "--rollback", "--url", server.url)[1].startswith("tone@live: 4 → 1\n")


@pytest.mark.slow
@pytest.mark.parametrize("added", [False, True], ids=["at once", "when the version is there"])
def test_a_kill_while_a_blend_is_made_leaves_an_unused_version_at_most(server, added):
    body = {"blend": {"1": 0.5, "2": 0.1 + added / 10, "3": 0.4 - added / 10}}

    def versions(own):
        return len(own.send("GET", "/v1/tasks/tone").json()["versions"])

    with server.client() as own:
        move(own, "tone", {"version": 1})
        before = versions(own)

        def blend():
            with suppress(httpx.TransportError), server.client() as other:
                move(other, "tone", body)

        asking = Thread(target=blend)
        asking.start()
        wait_until(lambda: not added or versions(own) > before)
    server.kill()
    asking.join()
    server.start()
    with server.client() as own:
        live = own.send("GET", "/v1/tasks/tone/aliases/live").json()["version"]
        assert live in (1, before + 1)
        assert versions(own) - before in ((1,) if added or live != 1 else (0, 1))
        assert move(own, "tone", body)["version"] == before + 1, "the version that is there is used"
        assert versions(own) == before + 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--split", "1=50,2=40"), "100 together"),
        (("--split", "1,2"), "is not VERSION=PERCENT"),
        (("--shadow", "x"), "is not VERSION or VERSION=PERCENT"),
        (("--shadow", "99"), "has no version 99"),
        (("--split", "1=100", "--sticky", "principal"), "for a split"),
        (("--blend", "1=0.5,2"), "is not VERSION=WEIGHT"),
        (("--blend", "1=0.5,2=0.4"), "1 together"),
        (("--blend", "1=0.5,2=0.5", "--shadow", "3"), "a meaning of its own"),
    ],
)
def test_a_bad_rollout_is_one_line(server, onebert, options, why):
    code, out, err = onebert(
        "rollout", "tone", *options, "--alias", "next" if not options else "live", "--url", server.url
    )
    assert (code != 0, out) == (True, "")
    assert why in err
    assert err.count("\n") == 1
