"""Splits and shadows over real processes: front ends send the header that decides, a kill loses no meaning."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from onebert_server.versions.choice import place_of
from servers import Task, assert_answers, both_layouts, wait_until

TASKS = [Task(seed=seed) for seed in (1, 2, 3)]
STORED = {"tone": TASKS, "mood": TASKS, "stepped": TASKS[:2]}
GUIDE = Path(__file__).parents[3] / "docs/guide/release.md"
TEXT = "the screen was broken"
SPLIT = {"split": {"1": 60, "2": 40}, "sticky": "header:X-User"}


def move(client, task, body):
    path = f"/v1/tasks/{task}/aliases/live"
    tag = client.send("GET", path).headers["etag"]
    return client.send("PUT", path, json=body, headers={"If-Match": tag}).json()


def version_of(task, user):
    return 2 if place_of(task, user.encode()) <= 40 else 1


@both_layouts
def test_each_user_has_one_version(server, client):
    move(client, "tone", SPLIT)
    for user in ["7", "anna", "José", *map(str, range(12))]:
        headers = {"X-User": user.encode()}
        with server.client() as web:
            path = "/v1/tasks/tone/classify"
            body = web.send("POST", path, json={"inputs": TEXT}, headers=headers).json()
            assert body["version"] == version_of("tone", user)
            assert_answers(body["results"][0], TASKS[body["version"] - 1].scores(TEXT))
            items = {"items": [{"task": "tone", "text": TEXT}, {"task": "gone", "text": TEXT}], "partial": True}
            answered, gone = web.send("POST", "/v1/classify", json=items, headers=headers).json()["results"]
            assert (answered["version"], gone["error"]["code"]) == (body["version"], "task-not-found")


def test_the_steps_of_the_guide_work_as_typed(server, client, onebert):
    steps = re.search(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[1].replace("tone", "stepped")
    meanings = []

    def meaning():
        return client.send("GET", "/v1/tasks/stepped/aliases/live").json()["target"]

    for line in steps.splitlines():
        assert onebert(*shlex.split(line)[1:], "--url", server.url)[0] == 0
        target = meaning()
        shadows = target["shadow"] if target else None
        meanings.append((target and target["split"], shadows and shadows[0]["version"]))
    assert meanings == [({"1": 100}, 2), ({"1": 95, "2": 5}, None), ({"1": 50, "2": 50}, None), (None, None)]
    assert onebert("rollout", "stepped", "--split", "1=50,2=50", "--url", server.url)[0] == 0
    assert onebert("rollout", "stepped", "--split", "none", "--url", server.url)[0] == 0
    assert meaning() is None


def test_a_killed_server_keeps_the_split_and_its_past(server, client, onebert):
    def rollout(*options):
        code, out, err = onebert("rollout", "mood", *options, "--url", server.url)
        assert (code, err) == (0, "")
        return out

    first = rollout("--split", "1=70,2=30", "--sticky", "principal", "--shadow", "3=50")
    assert " → 70 % 1, 30 % 2 by principal, shadow 3 began (50 %)" in first
    assert "to end it: onebert promote mood 1" in first
    assert onebert("promote", "mood", "2", "--url", server.url)[0] == 0
    server.kill()
    server.start()
    code, out, _ = onebert("promote", "mood", "--rollback", "--url", server.url)
    assert code == 0
    # Not to the split, in which version 2 had a share.
    assert "mood@live: rolled back to 1\n" in out
    rollout("--split", "1=70,2=30", "--sticky", "principal", "--shadow", "3=50")
    with server.client() as web:
        for _ in range(20):
            web.classify("mood", TEXT)
    # One part is replaced, and the others stay.
    assert "mood@live: shadow 3 50 → 100 %\n" in rollout("--shadow", "3")
    assert "70 % 1, 30 % 2 by principal → 80 % 1, 20 % 2 by principal\n" in rollout("--split", "1=80,2=20")
    assert "mood@live: shadow 3 ended\n" in rollout("--shadow", "none")
    rollout("--split", "1=70,2=30", "--shadow", "3=50")

    def status(*options):
        code, out, err = onebert("status", *options, "--url", server.url)
        assert (code, err) == (0, "")
        return out

    record = json.loads(status("mood", "--json"))
    assert record["live"]["target"].items() >= {"split": {"1": 70, "2": 30}, "sticky": "principal"}.items()
    wait_until(lambda: sum(shadow["answers"] for shadow in json.loads(status("mood", "--json"))["shadows"]) > 0)
    assert "answers alike" in status("mood")
    words = {task["name"]: task["live"]["words"] for task in json.loads(status("--json"))}
    assert words["mood"] == "70 % 1, 30 % 2 by principal, shadow 3 (50 %)"
    assert onebert("delete", "mood@live", "--url", server.url)[0] == 0


def test_a_rollback_undoes_no_later_move(server, onebert, monkeypatch):
    # The server may have been started again, on another port.
    with server.client() as client:
        for task in TASKS:
            client.push("asked", task.file)
        move(client, "asked", {"version": 2})
        move(client, "asked", {"split": {"2": 90, "1": 10}})

        def confirm(question, **_):
            assert "asked@live goes from 10 % 1, 90 % 2 back to 1, not to 2 alone" in question
            move(client, "asked", {"version": 3})

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(typer, "confirm", confirm)
        code, _, err = onebert("promote", "asked", "--rollback", "--url", server.url)
        assert (code, "asked@live is `3` now, was `10 % 1, 90 % 2`: run it again" in err) == (1, True), err
        assert client.task("asked")["aliases"] == {"live": 3}
        client.send("DELETE", "/v1/tasks/asked")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--split", "1=50,2=40"), "100 together"),
        (("--shadow", "99"), "has no version 99"),
    ],
)
def test_a_bad_rollout_is_one_line(server, onebert, options, why):
    code, out, err = onebert(
        "rollout", "tone", *options, "--alias", "next" if not options else "live", "--url", server.url
    )
    assert (code != 0, out) == (True, "")
    assert why in err
    assert err.count("\n") == 1
