"""`onebert review` and `onebert export-traffic` of a real server: kept answers to files, labels back as feedback."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pyarrow.parquet
import pytest
from cryptography.fernet import Fernet

from onebert_server.client import Client
from servers import Server, Task, run_onebert, store, wait_until

PAGE = (Path(__file__).parents[3] / "docs/guide/review.md").read_text(encoding="utf-8")
TONE = Task(seed=1, labels=["complaint", "question", "praise"])
TOPICS = Task(seed=2, task_type="multi_label", labels=["late", "size"])
STARS = Task(seed=3, labels=["stars"], task_type="regression")
NAMES = Task(seed=4, pooling="none", labels=["O", "B-X"], task_type="token")
TEXTS = ["the parcel never came", "thank you", "is the shop open", "lovely", "late and broken"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("review")
    store(folder / "data", tone=TONE, topics=TOPICS, stars=STARS, names=NAMES)
    with Server(folder, samples_key=Fernet.generate_key().decode()) as running:
        yield running


@pytest.fixture
def ids():
    """The id that begins the ids of a task's kept answers, by task."""
    return {}


@pytest.fixture
def client(server, ids):
    """A client of the server; all tasks' answers to all texts are kept with the ids `ID/0`, `ID/1`, …."""
    with Client(server.url) as client:
        for task in ("tone", "topics", "stars", "names"):
            client.set_samples(task, 1.0)
            asked = httpx.post(f"{server.url}/v1/tasks/{task}/classify", json={"inputs": TEXTS}, timeout=60)
            ids[task] = asked.raise_for_status().headers["X-Request-Id"]
            wait_until(lambda task=task: client.samples(task).kept == len(TEXTS))
        yield client
        for task in ("tone", "topics", "stars", "names"):
            client.delete_samples(task)


def done(server, *arguments):
    made = run_onebert(*map(str, arguments), url=server.url)
    assert made.returncode == 0, made.stderr
    return made.stdout


def refused(server, *arguments):
    made = run_onebert(*map(str, arguments), url=server.url)
    assert made.returncode != 0
    assert "Traceback" not in made.stderr
    return made.stderr


def answered(tool, record, label):
    """The record of the queue as the program exports it, after a person has chosen the label."""
    if tool == "argilla":
        return {**record, "responses": {"label": [{"value": label, "user_id": "63d9e9d8"}]}, "status": "completed"}
    chosen = {"type": "choices", "from_name": "label", "to_name": "text"}
    result = [{**chosen, "value": {"choices": label if isinstance(label, list) else [label]}}]
    return {**record, "id": 1, "annotations": [{"result": result, "was_cancelled": False}]}


def unanswered(tool, record):
    return {**record, "responses": {}} if tool == "argilla" else {**record, "annotations": []}


def text_of(tool, record):
    return record["fields" if tool == "argilla" else "data"]["text"]


@pytest.mark.parametrize("tool", ["label-studio", "argilla"])
def test_the_queue_comes_back_as_feedback(server, client, ids, tmp_path, tool):
    queue, labeled = tmp_path / "queue.json", tmp_path / "labeled.json"
    said = done(server, "review", "tone", "--out", queue, "--tool", tool, "--by", "margin", "--limit", 4)
    assert said == f"4 texts in {queue}; labels: complaint, question, praise\n"
    records = json.loads(queue.read_text())

    def margin(text):
        second, best = sorted(TONE.scores(text).values())[-2:]
        return best - second

    assert [text_of(tool, one) for one in records] == sorted(TEXTS, key=margin)[:4]

    client.delete_sample("tone", f"{ids['tone']}/{TEXTS.index(text_of(tool, records[1]))}")
    back = [answered(tool, one, "praise") for one in records[:2]] + [unanswered(tool, one) for one in records[2:]]
    labeled.write_text(json.dumps(back))
    said = done(server, "review", "tone", "--in", labeled, "--tool", tool)
    assert said == "tone: feedback on 1 texts; skipped: 2 without a label, 1 no longer kept\n"
    [row] = client.feedback_rows("tone")
    [id] = [f"{ids['tone']}/{n}" for n, text in enumerate(TEXTS) if text == text_of(tool, records[0])]
    assert (row.identifier, row.text, row.label, row.kind) == (id, text_of(tool, records[0]), "praise", "review")
    # The same file again replaces the row, and the queue has the text no longer.
    done(server, "review", "tone", "--in", labeled, "--tool", tool)
    assert len(client.feedback_rows("tone")) == 1
    done(server, "review", "tone", "--out", queue, "--tool", tool)
    assert row.text not in [text_of(tool, one) for one in json.loads(queue.read_text())]


def test_the_example_of_the_page(server, client, ids, tmp_path):
    queue, labeled = tmp_path / "queue.json", tmp_path / "labeled.json"
    lines = re.findall(r"^onebert .* tone .*(?:queue|labeled|traffic).*$", PAGE, re.MULTILINE)
    out, back, traffic = (re.sub(r"(\w+\.\w+)", rf"{tmp_path}/\1", line).split()[1:] for line in lines)
    done(server, *out)
    labeled.write_text(json.dumps([answered("label-studio", one, "praise") for one in json.loads(queue.read_text())]))
    assert done(server, *back) == "tone: feedback on 5 texts\n"
    done(server, *traffic)
    rows = pyarrow.parquet.read_table(tmp_path / "traffic.parquet").to_pylist()
    assert {row["id"]: row["target"] for row in rows} == {f"{ids['tone']}/{n}": "praise" for n in range(5)}


@pytest.mark.parametrize("tool", ["label-studio", "argilla"])
def test_several_labels_and_people_who_disagree(server, client, ids, tmp_path, tool):
    queue, labeled = tmp_path / "queue.json", tmp_path / "labeled.json"
    done(server, "review", "topics", "--out", queue, "--tool", tool)
    both, none, other = (answered(tool, one, []) for one in json.loads(queue.read_text())[:3])
    both = answered(tool, both, ["late", "size"])
    first, second = answered(tool, other, ["late"]), answered(tool, other, ["size"])
    if tool == "argilla":
        first["responses"]["label"] += second["responses"]["label"]
    else:
        first["annotations"] += second["annotations"]
    labeled.write_text(json.dumps([both, none, first]))
    said = done(server, "review", "topics", "--in", labeled, "--tool", tool)
    assert said == "topics: feedback on 2 texts; skipped: 1 on which people disagree\n"
    assert {row.text: row.labels for row in client.feedback_rows("topics")} == {
        text_of(tool, both): ["late", "size"],
        text_of(tool, none): [],
    }


def test_what_is_refused_records_nothing(server, client, ids, tmp_path):
    labeled = tmp_path / "labeled.json"
    good = {"id": f"{ids['tone']}/0", "responses": {"label": [{"value": "praise"}]}}
    for label, says in (
        ("prase", "labeled.json, item 2: 'prase' is not a label of tone"),
        (["praise", "question"], "labeled.json, item 2: it has several labels, and tone has one for a text"),
    ):
        labeled.write_text(json.dumps([good, {"id": f"{ids['tone']}/1", "responses": {"label": [{"value": label}]}}]))
        assert says in refused(server, "review", "tone", "--in", labeled, "--tool", "argilla")
    assert client.feedback_rows("tone") == []
    says = "stars is a regression task; onebert review takes single_label and multi_label"
    assert says in refused(server, "review", "stars", "--in", labeled, "--tool", "argilla")
    assert says in refused(server, "review", "stars", "--out", tmp_path / "queue.json", "--tool", "argilla")
    assert "--in" in refused(server, "review", "tone", "--tool", "argilla")


def test_traffic_with_its_feedback_is_read_by_pyarrow(server, client, ids, tmp_path):
    client.feedback([{"id": f"{ids['tone']}/1", "label": "praise", "kind": "review"}])
    out = tmp_path / "traffic.parquet"
    assert done(server, "export-traffic", "tone", "--out", out) == f"5 rows in {out}, 1 with a target\n"
    table = pyarrow.parquet.read_table(out)
    assert table.column_names == "timestamp id version prediction prediction_score target weight".split()
    rows = {row["id"]: row for row in table.to_pylist()}
    for n, text in enumerate(TEXTS):
        row, scores = rows[f"{ids['tone']}/{n}"], TONE.scores(text)
        assert row["prediction"] == max(scores, key=scores.get)
        assert row["prediction_score"] == pytest.approx(max(scores.values()), abs=1e-4)
        assert (row["version"], row["target"], row["weight"]) == (1, "praise" if n == 1 else None, 1.0)
        assert timedelta() <= datetime.now(UTC) - row["timestamp"] < timedelta(hours=1)
    done(server, "export-traffic", "tone", "--out", out, "--texts")
    found = pyarrow.parquet.read_table(out, columns=["id", "text", "text_pair"]).to_pylist()
    assert {row["id"]: row["text"] for row in found} == {f"{ids['tone']}/{n}": text for n, text in enumerate(TEXTS)}
    assert "--out ends in one of .csv, .jsonl, .parquet" in refused(server, "export-traffic", "tone", "--out", "a.txt")


def test_traffic_of_other_task_types(server, client, ids, tmp_path):
    client.set_samples("topics", 0.5)
    httpx.post(f"{server.url}/v1/tasks/topics/classify", json={"inputs": TEXTS * 12}, timeout=60).raise_for_status()
    wait_until(lambda: client.samples("topics").kept > len(TEXTS))
    client.feedback(
        [{"id": f"{ids['topics']}/0", "labels": ["late", "size"]}, {"id": f"{ids['topics']}/1", "labels": []}]
    )
    client.feedback([{"id": f"{ids['stars']}/0", "value": 2.5}])
    client.feedback([{"id": f"{ids['names']}/1", "spans": [{"start": 0, "end": 5, "label": "X"}]}])
    rows = {}
    for task in ("topics", "stars", "names"):
        done(server, "export-traffic", task, "--out", tmp_path / f"{task}.parquet")
        rows[task] = {row["id"]: row for row in pyarrow.parquet.read_table(tmp_path / f"{task}.parquet").to_pylist()}
    for n, text in enumerate(TEXTS):
        logits = TOPICS.logits(text)
        over = [label for label, logit in zip(TOPICS.manifest["labels"], np.asarray(logits), strict=True) if logit > 0]
        assert sorted(json.loads(rows["topics"][f"{ids['topics']}/{n}"]["prediction"])) == sorted(over)
    assert [rows["topics"][f"{ids['topics']}/{n}"]["target"] for n in range(3)] == ['["late", "size"]', "[]", None]
    assert {row["weight"] for row in rows["topics"].values()} == {1.0, 2.0}
    assert (rows["stars"][f"{ids['stars']}/0"]["target"], rows["stars"][f"{ids['stars']}/1"]["target"]) == (2.5, None)
    assert json.loads(rows["names"][f"{ids['names']}/1"]["target"]) == [{"start": 0, "end": 5, "label": "X"}]
    done(server, "export-traffic", "topics", "--out", tmp_path / "topics.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "topics.jsonl").read_text().splitlines()]
    assert {line["id"]: line["target"] for line in lines}[f"{ids['topics']}/0"] == ["late", "size"]
    done(server, "export-traffic", "stars", "--out", tmp_path / "stars.csv")
    assert "2.5" in (tmp_path / "stars.csv").read_text().splitlines()[1]
