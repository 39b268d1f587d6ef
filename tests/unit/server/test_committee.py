"""A committee on a replica: mean scores and their spread, against asking each of its versions."""

import numpy as np
import pytest

from runtimes import ask, get, opened, upload
from servers import Task, wait_until

TEXTS = ["the screen was broken", "it is late", "a very good day"]
TASKS = [Task(seed=seed) for seed in (1, 2, 3, 4)]


def pushed(runtime, name, tasks, split):
    for task in tasks:
        upload(runtime, name, task)
    path = f"/v1/tasks/{name}/aliases/committee"
    assert ask(runtime, "PUT", path, json={"split": split}, headers={"If-None-Match": "*"}).status_code == 200


def classify(runtime, ref="tone", **body):
    return ask(runtime, "POST", f"/v1/tasks/{ref}/classify", json={"inputs": TEXTS} | body)


@pytest.fixture
def runtime(tmp_path):
    # Without the probe of the texts' source, which adds a sequence at its own time.
    with opened(tmp_path, false_alarms=0) as made:
        pushed(made, "tone", TASKS, {"2": 34, "3": 33, "4": 33})
        yield made


def test_a_committee_answers_the_mean_of_its_versions_with_their_spread(runtime):
    found = classify(runtime, committee=True).json()
    assert {name: found[name] for name in ("task", "version", "digest", "versions")} == {
        "task": "tone",
        "version": None,
        "digest": None,
        "versions": [2, 3, 4],
    }
    each = [classify(runtime, f"tone@{number}").json()["results"] for number in (2, 3, 4)]
    for answered, members in zip(found["results"], zip(*each, strict=True), strict=True):
        means = {label: np.mean([one["scores"][label] for one in members]) for label in members[0]["scores"]}
        assert answered["scores"] == pytest.approx(means)
        assert answered["label"] == max(means, key=means.get)
        assert answered["score"] == pytest.approx(max(means.values()))
        assert answered["spread"] == pytest.approx(np.std([one["scores"][answered["label"]] for one in members]))
        assert answered["spread"] > 0
        assert answered["tokens"] == members[0]["tokens"]
    one = classify(runtime, inputs=TEXTS[0], committee=True, top_k=1).json()
    assert one["results"][0]["scores"].keys() == {found["results"][0]["label"]}


def test_all_members_answer_in_one_batch_and_metrics_count_one_answer(runtime):
    def counted():
        # The engine counts a batch behind its answers.
        wait_until(lambda: runtime.engine.pass_seconds == 0)
        lines = get(runtime, "/metrics").text.splitlines()
        names = "onebert_batch_sequences_sum", "onebert_batch_sequences_count", "onebert_task_labels_total"
        return np.array([sum(float(one.split()[-1]) for one in lines if one.startswith(name)) for name in names])

    before = counted()
    assert classify(runtime, committee=True).status_code == 200
    assert list(counted() - before) == [3 * len(TEXTS), 1, len(TEXTS)]


def test_labels_and_abstentions_are_those_of_more_than_half(runtime):
    rules = [
        {"thresholds": {f"label {i}": 0.3 for i in range(3)}, "abstain": {"below": below}} for below in (0.1, 0.9, 0.99)
    ]
    tasks = [Task(seed=seed, format=2, decision=rule) for seed, rule in enumerate(rules, 1)]
    pushed(runtime, "mood", tasks, {"1": 34, "2": 33, "3": 33})
    found = classify(runtime, "mood", committee=True).json()["results"]
    each = [classify(runtime, f"mood@{number}").json()["results"] for number in (1, 2, 3)]
    for answered, members in zip(found, zip(*each, strict=True), strict=True):
        counts = {label: sum(label in one["labels"] for one in members) for label in answered["scores"]}
        assert answered["labels"] == [label for label in answered["scores"] if counts[label] >= 2]
        assert answered["abstained"] is (sum(one["abstained"] for one in members) >= 2)
    assert {one["abstained"] for results in each for one in results} == {True, False}, "the members disagree"


def test_a_regression_has_a_mean_too(runtime):
    tasks = [Task(seed=seed, task_type="regression", labels=["stars"]) for seed in (1, 2)]
    pushed(runtime, "stars", tasks, {"1": 50, "2": 50})
    found = classify(runtime, "stars", committee=True).json()["results"]
    values = [[one["score"] for one in classify(runtime, f"stars@{n}").json()["results"]] for n in (1, 2)]
    assert [one["score"] for one in found] == pytest.approx(list(np.mean(values, axis=0)))
    assert [one["spread"] for one in found] == pytest.approx(list(np.std(values, axis=0)))


@pytest.mark.parametrize(
    ("name", "body", "status", "said"),
    [
        ("alone", {}, 404, "alone has no alias committee"),
        ("tone@2", {}, 422, "by the name of its task alone"),
        ("gone", {}, 404, "gone"),
        ("tags", {}, 422, "tags@1 is a token task, whose answers have no mean"),
        ("mixed", {}, 422, "differ in their labels"),
        ("tone", {"explain": True}, 422, "explain is for the answer of one version"),
    ],
)
def test_what_has_no_committee_or_no_mean_is_refused_in_one_sentence(runtime, name, body, status, said):
    upload(runtime, "alone", TASKS[0])
    token = [Task(seed=seed, pooling="none", labels=["O", "B-X"], task_type="token") for seed in (1, 2)]
    pushed(runtime, "tags", token, {"1": 50, "2": 50})
    pushed(runtime, "mixed", [TASKS[0], Task(labels=2)], {"1": 50, "2": 50})
    refused = classify(runtime, name, committee=True, **body)
    assert refused.status_code == status, refused.text
    assert said in refused.text
