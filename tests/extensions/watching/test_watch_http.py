"""Watching over HTTP: counts of whichever process answered, an alarm that goes on with a shift and off without it."""

import json
import re
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from onebert_store.file.manifest import parse_manifest
from onebert_store.file.reference import WINDOW
from onebert_training.fit.reference import reference_of
from servers import Task, front_ends, wait_until
from trainings import THINGS

GUIDE = Path(__file__).parents[3] / "docs/guide/watching.md"
ROWS = 300
# So many that a window has none twice.
TEXTS = [
    f"the {thing} was {word} {when} {number}"
    for thing in THINGS
    for word in ("good", "bad", "late")
    for when in ("now", "")
    for number in range(100, 140)
]


def by_label(task):
    """The texts of two labels, and what the plain model answers to each text; its bias makes both equally frequent."""
    answers = np.stack([task.logits(text) for text in TEXTS]).astype(np.float32)
    bias = np.median(answers[:, 1] - answers[:, 0])
    task.tensors["head.bias"][0] += bias
    answers[:, 0] += bias
    leads = answers[:, 0] - answers[:, 1]
    # Without those that rounding decides.
    lists = [[TEXTS[place] for place in np.flatnonzero(way * leads > 1e-4)] for way in (1, -1)]
    return dict(zip(TEXTS, answers, strict=True)), *lists


def stream(of, count, share):
    """So many texts, of which every tenth to `share` tenths are of the other label."""
    return [next(of[place % 10 < share]) for place in range(count)]


def kinds_of(value):
    """The keys of an answer with the types of their values; of a list its first one."""
    if isinstance(value, dict):
        return {name: kinds_of(part) for name, part in value.items()}
    return [kinds_of(value[0])] if isinstance(value, list) else type(value)


@pytest.fixture(scope="module")
def watched(server):
    """A task with a reference of texts that have the other label in two cases of ten."""
    task = Task(labels=2, seed=7)  # one that does not answer the same to all texts
    logits, common, other = by_label(task)
    assert min(len(common), len(other)) > WINDOW
    of = cycle(common), cycle(other)
    rows = stream(of, ROWS, 2)
    reference = reference_of(parse_manifest(task.manifest), [logits[text] for text in rows], "validation", [])
    task.manifest |= {"format": 3, "reference": reference.model_dump()}
    with server.client() as client:
        client.push("tone", task.file)
    return of


@front_ends
def test_an_alarm_goes_on_with_a_shift_and_off_when_it_ends(server, watched):
    with server.client() as client:

        def watch():
            [version] = client.send("GET", "/v1/tasks/tone/watch").json()["versions"]
            return version

        def status():
            [task] = [task for task in client.send("GET", "/v1/status").json()["tasks"] if task["name"] == "tone"]
            return task["shift"], task["alarm"]

        def answers(*, texts, until, **asked):
            for start in range(0, len(texts), 50):
                body = {"inputs": texts[start : start + 50], **asked}
                client.send("POST", "/v1/tasks/tone/classify", json=body)
            wait_until(lambda: watch()["answers"] == until)

        assert (watch()["state"], watch()["answers"], watch()["rows"]) == ("collecting", 0, ROWS)
        assert status() == (None, None)
        # Answers count from the moment when the manifest is read.
        first, again = stream(watched, 1, 0) * 2
        wait_until(lambda: client.classify("tone", first) and watch()["answers"] > 0)
        # A health check: one text asked again and again is one answer.
        for _ in range(5):
            client.classify("tone", again)
        wait_until(lambda: watch()["repeats"] >= 5)
        assert watch()["answers"] == 1
        answers(texts=stream(watched, WINDOW - 1, 2), until=WINDOW)
        wait_until(lambda: watch()["window"] == WINDOW)
        state = watch()
        assert (state["state"], state["alarm_since"], state["aliases"]) == ("watched", None, ["live"])
        assert [(label["reference"], label["live"]) for label in state["labels"]] == [(240, 400), (60, 100)]
        assert sum(state["scores"]["live"]) == WINDOW
        # The request's own rules make other answers, which no reference has.
        answers(texts=TEXTS[:300], until=WINDOW, activation="sigmoid")
        answers(texts=TEXTS[:300], until=WINDOW, threshold=0.1)
        assert server.metric("onebert_alarms ") == 0

        answers(texts=stream(watched, WINDOW, 8), until=2 * WINDOW)
        wait_until(lambda: watch()["labels"][1]["live"] == 400)
        state = watch()
        assert state["alarm_since"] is not None
        [example] = re.findall("```json\n(.+?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
        assert kinds_of(json.loads(example)["versions"][0]) == kinds_of(state)
        assert state["p"] < 1e-6
        shift, alarm = status()
        assert shift == alarm["shift"] == {"label": "label 0", "reference": 0.8, "live": 0.2}
        assert (alarm["since"], alarm["version"]) == (state["alarm_since"], 1)
        assert alarm["words"] == "other labels than its reference"
        assert alarm["scores"].items() <= state["scores"].items()
        assert server.metric("onebert_alarms ") == server.metric('onebert_task_alarm{task="tone",version="1"}') == 1
        assert server.metric('onebert_alarm_changes_total{state="on"}') == 1

        answers(texts=stream(watched, WINDOW, 2), until=3 * WINDOW)
        wait_until(lambda: watch()["alarm_since"] is None)
        assert status()[1] is None
        assert server.metric("onebert_alarms ") == server.metric("onebert_task_alarm{") == 0
        assert server.metric('onebert_alarm_changes_total{state="off"}') == 1
    log = server.log.read_text()
    [alarm] = [line for line in log.splitlines() if "tone@1: its answers are no longer like its reference" in line]
    assert "label 0 80.0% -> " in alarm
    assert "mean top score" in alarm
    assert not any(text in log for text in TEXTS)


@front_ends
def test_a_version_without_a_reference_learns_one(server, watched):
    with server.client() as client:
        client.push("plain", Task(seed=1).file)

        def watch():
            [version] = client.send("GET", "/v1/tasks/plain/watch").json()["versions"]
            return version

        assert (watch()["state"], watch()["window"], watch()["labels"]) == ("learning", 0, [])
        wait_until(lambda: client.classify("plain", TEXTS[0]) and watch()["answers"] == 1)
        for part in np.random.default_rng(0).permutation(TEXTS).reshape(-1, 48).tolist():
            client.send("POST", "/v1/tasks/plain/classify", json={"inputs": part})
        wait_until(lambda: watch()["state"] != "learning")
        state = watch()
    assert (state["split"], state["rows"]) == ("answers", 2 * WINDOW)
    assert 0 < state["hears"] < 0.15


@front_ends
def test_a_regression_is_not_watched_and_says_so(server, watched):
    with server.client() as client:
        client.push("price", Task(labels=1, task_type="regression").file)
        client.classify("price", TEXTS[0])
        [version] = client.send("GET", "/v1/tasks/price/watch").json()["versions"]
    assert (version["state"], version["answers"], version["hears"]) == ("unwatched", 0, None)
