"""Metrics of tasks over HTTP: what the answers said, whichever process gave them, for who may see every task."""

from collections import Counter

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from servers import Task, layouts, wait_until

KEY = "a-key-of-the-task-metrics"
TEXTS = ["the screen was broken", "where is my parcel", "it came late", "what was that", "never again " * 64]


SETTINGS = {"api_keys": KEY, "task_metrics": 2}
STORED = {name: Task(seed=len(name)) for name in ("first", "second", "third")}


def client_of(server, key=KEY):
    return httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=180)


def samples(client, **asked):
    families = text_string_to_metric_families(client.get("/metrics", params=asked).text)
    return {
        (sample.name, *(sample.labels[name] for name in ("task", "label", "le") if name in sample.labels)): sample.value
        for family in families
        if family.name.startswith("onebert_task_")
        for sample in family.samples
    }


@layouts
def test_answers_are_counted_by_task_label_and_score(server):
    labels, scores = Counter(), Counter()
    with client_of(server) as client:
        for task, shown in (("first", "first"), ("second", "second"), ("third", "(other)")):
            for text in TEXTS:
                # What explains an answer is no answer of its own.
                asked = {"inputs": [text], "explain": task == "second"}
                [result] = client.post(f"/v1/tasks/{task}/classify", json=asked).json()["results"]
                labels[shown, result["label"]] += 1
                scores[shown] += result["score"]
        # Refused, and asked of a task that is not there: nothing is counted.
        client.post("/v1/tasks/first/classify", json={"inputs": ""})
        client.post("/v1/tasks/nobody/classify", json={"inputs": TEXTS[0]})
        wait_until(lambda: samples(client).get(("onebert_task_request_seconds_count", "(other)")) == len(TEXTS), 180)
        counts = samples(client)
        wanted = "onebert_task_labels_total"
        assert samples(client, **{"name[]": wanted}) == {
            key: value for key, value in counts.items() if key[0] == wanted
        }
    assert {key[1:]: value for key, value in counts.items() if key[0] == "onebert_task_labels_total"} == labels
    for task, total in scores.items():
        assert counts["onebert_task_request_seconds_count", task] == counts["onebert_task_top_score_count", task] == 5
        # The last text is longer than the tasks read.
        assert counts["onebert_task_truncated_total", task] == 1
        assert counts["onebert_task_top_score_sum", task] == pytest.approx(total)
    assert {key[1] for key in counts} == {"first", "second", "(other)"}


@layouts
def test_who_does_not_see_every_task_reads_none(server):
    with client_of(server) as client:
        made = client.post("/v1/keys", json={"name": "one", "scopes": ["classify"], "tasks": ["first"]})
        assert made.status_code == 201, made.text
        with client_of(server, made.json()["key"]) as limited:
            wait_until(lambda: limited.get("/metrics").status_code != 401, 180)
            assert limited.get("/metrics").status_code == 403
