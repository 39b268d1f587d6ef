"""`onebert review` of a real server: kept answers to files, labels back as feedback; and the route of kept answers."""

import json
import re
from pathlib import Path

import httpx
import pytest
from cryptography.fernet import Fernet

from onebert_server.client import Client
from servers import Server, Task, run_onebert, store, wait_until

PAGE = (Path(__file__).parents[3] / "docs/guide/feedback.md").read_text(encoding="utf-8")
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
    printed = done(server, "review", "tone", "--out", queue, "--tool", tool, "--by", "margin", "--limit", 4)
    assert printed == f"4 texts in {queue}; labels: complaint, question, praise\n"
    records = json.loads(queue.read_text())

    def margin(text):
        second, best = sorted(TONE.scores(text).values())[-2:]
        return best - second

    assert [text_of(tool, item) for item in records] == sorted(TEXTS, key=margin)[:4]

    client.delete_sample("tone", f"{ids['tone']}/{TEXTS.index(text_of(tool, records[1]))}")
    back = [answered(tool, item, "praise") for item in records[:2]] + [unanswered(tool, item) for item in records[2:]]
    labeled.write_text(json.dumps(back))
    printed = done(server, "review", "tone", "--in", labeled, "--tool", tool)
    assert printed == "tone: feedback on 1 texts; skipped: 2 without a label, 1 no longer kept\n"
    [row] = client.feedback_rows("tone")
    [id] = [f"{ids['tone']}/{n}" for n, text in enumerate(TEXTS) if text == text_of(tool, records[0])]
    assert (row.identifier, row.text, row.label, row.kind) == (id, text_of(tool, records[0]), "praise", "review")
    # The same file again replaces the row, and the queue has the text no longer.
    done(server, "review", "tone", "--in", labeled, "--tool", tool)
    assert len(client.feedback_rows("tone")) == 1
    done(server, "review", "tone", "--out", queue, "--tool", tool)
    assert row.text not in [text_of(tool, item) for item in json.loads(queue.read_text())]


def test_the_example_of_the_page(server, client, ids, tmp_path):
    queue, labeled = tmp_path / "queue.json", tmp_path / "labeled.json"
    lines = re.findall(r"^onebert .* tone .*(?:queue|labeled).*$", PAGE, re.MULTILINE)
    out, back = (re.sub(r"(\w+\.\w+)", rf"{tmp_path}/\1", line).split()[1:] for line in lines)
    done(server, *out)
    labeled.write_text(json.dumps([answered("label-studio", item, "praise") for item in json.loads(queue.read_text())]))
    assert done(server, *back) == "tone: feedback on 5 texts\n"
    assert {row.id: row.right.label for row in client.sample_rows("tone").samples} == {
        f"{ids['tone']}/{n}": "praise" for n in range(5)
    }


@pytest.mark.parametrize("tool", ["label-studio", "argilla"])
def test_several_labels_and_people_who_disagree(server, client, ids, tmp_path, tool):
    queue, labeled = tmp_path / "queue.json", tmp_path / "labeled.json"
    done(server, "review", "topics", "--out", queue, "--tool", tool)
    both, none, other = (answered(tool, item, []) for item in json.loads(queue.read_text())[:3])
    both = answered(tool, both, ["late", "size"])
    first, second = answered(tool, other, ["late"]), answered(tool, other, ["size"])
    if tool == "argilla":
        first["responses"]["label"] += second["responses"]["label"]
    else:
        first["annotations"] += second["annotations"]
    labeled.write_text(json.dumps([both, none, first]))
    printed = done(server, "review", "topics", "--in", labeled, "--tool", tool)
    assert printed == "topics: feedback on 2 texts; skipped: 1 on which people disagree\n"
    assert {row.text: row.labels for row in client.feedback_rows("topics")} == {
        text_of(tool, both): ["late", "size"],
        text_of(tool, none): [],
    }


def test_a_label_that_the_task_does_not_have_is_kept_and_named_and_one_that_is_none_is_skipped(
    server, client, ids, tmp_path
):
    labeled = tmp_path / "labeled.json"
    values = ["praise", "delivery", "delivery", ["praise", "question"], "a\nb"]
    records = [
        {"id": f"{ids['tone']}/{n}", "responses": {"label": [{"value": value}]}} for n, value in enumerate(values)
    ]
    labeled.write_text(json.dumps(records))
    assert done(server, "review", "tone", "--in", labeled, "--tool", "argilla") == (
        "tone: feedback on 3 texts; new labels: delivery 2; skipped: 1 with several labels for one text, "
        "1 with a label that has a line break or another control character\n"
    )
    rows = [(row.label, row.new_labels) for row in client.feedback_rows("tone")]
    assert rows == [("praise", None), ("delivery", ["delivery"]), ("delivery", ["delivery"])]
    assert "new labels  delivery 2\n" in re.sub(" +\n", "\n", done(server, "status", "tone"))


@pytest.mark.parametrize("tool", ["label-studio", "argilla"])
def test_a_text_that_is_in_the_file_twice_is_one_that_people_may_disagree_on(server, client, ids, tmp_path, tool):
    queue, labeled = tmp_path / "queue.json", tmp_path / "labeled.json"
    done(server, "review", "tone", "--out", queue, "--tool", tool)
    agreed, disputed, open_ = json.loads(queue.read_text())[:3]
    labels = [(agreed, "praise"), (disputed, "praise"), (open_, "question"), (agreed, "praise"), (disputed, "question")]
    records = [answered(tool, sent, label) for sent, label in labels] + [unanswered(tool, open_)]
    labeled.write_text(json.dumps(records))
    printed = done(server, "review", "tone", "--in", labeled, "--tool", tool)
    assert printed == "tone: feedback on 2 texts; skipped: 1 on which people disagree\n"
    assert {row.text: row.label for row in client.feedback_rows("tone")} == {
        text_of(tool, agreed): "praise",
        text_of(tool, open_): "question",
    }


def drawn(start, end, *labels):
    value = {"start": start, "end": end, "labels": [*labels]}
    return {"type": "labels", "from_name": "label", "to_name": "text", "value": value}


def test_spans_become_feedback_and_what_the_server_refuses_is_counted(server, client, ids, tmp_path):
    """The texts are TEXTS; the task's only kind of entity is X."""
    other = {"type": "choices", "from_name": "sure", "to_name": "text", "value": {"choices": ["yes"]}}
    people = [
        [[drawn(4, 10, "X"), other]],
        [[other]],
        [[drawn(0, 99, "X")]],
        [[drawn(0, 6, "X")], [drawn(0, 4, "X")]],
        [[drawn(0, 4, "X"), drawn(0, 8, "X")]],
        [[drawn(0, 4, "X") | {"value": {"start": 0, "end": 4, "text": "late", "labels": ["X"]}}]],
    ]
    records = [
        {
            "data": {"id": f"{ids['names']}/{n}", "text": TEXTS[n % len(TEXTS)]},
            "annotations": [{"result": result, "was_cancelled": False} for result in results],
        }
        for n, results in enumerate(people)
    ]
    labeled = tmp_path / "labeled.json"
    labeled.write_text(json.dumps([*records, {"data": {"text": "no id"}, "annotations": []}]))
    printed = done(server, "review", "names", "--in", labeled, "--tool", "label-studio")
    assert printed.startswith("names: feedback on 2 texts; skipped: ")
    for reason in (
        "1 on which people disagree",
        "1 unreadable (data.id: Field required)",
        "1 unreadable (a span is outside of its text)",
        "1 unreadable (a span's own text is elsewhere: its start and end count no code points)",
        "1 refused (the span from 0 to 8 overlaps another one)",
    ):
        assert reason in printed
    rows = {row.text: row.spans for row in client.feedback_rows("names")}
    assert {text: [(span.start, span.end, span.label) for span in spans] for text, spans in rows.items()} == {
        TEXTS[0]: [(4, 10, "X")],
        TEXTS[1]: [],
    }


@pytest.mark.parametrize("tool", ["label-studio", "argilla"])
def test_a_queue_with_entities_comes_back_as_it_went_out(server, client, ids, tmp_path, tool):
    queue, labeled = tmp_path / "queue.json", tmp_path / "labeled.json"
    printed = done(server, "review", "names", "--out", queue, "--tool", tool)
    assert printed == f"5 texts in {queue}; labels: X\n"
    accepted = []
    for record in json.loads(queue.read_text()):
        if tool == "argilla":
            value = record["suggestions"]["label"]["value"]
            accepted.append(record | {"responses": {"label": [{"value": value}]}, "status": "completed"})
        else:
            results = [prediction["result"] for prediction in record["predictions"]]
            result = results[0] if results else []
            for part in result:
                value = part["value"]
                assert record["data"]["text"][value["start"] : value["end"]] == value["text"]
            accepted.append(record | {"annotations": [{"result": result, "was_cancelled": False}]})
    labeled.write_text(json.dumps(accepted))
    assert done(server, "review", "names", "--in", labeled, "--tool", tool) == "names: feedback on 5 texts\n"
    rows = client.feedback_rows("names")
    answers = client.classify("names", [row.text for row in rows])
    assert sum(len(row.spans) for row in rows) > 0
    for row, answer in zip(rows, answers, strict=True):
        assert [(span.start, span.end, span.label) for span in row.spans] == [
            (entity.start, entity.end, entity.label) for entity in answer.entities
        ]


def test_tasks_that_have_no_queue_are_refused(server, client, ids, tmp_path):
    labeled = tmp_path / "labeled.json"
    labeled.write_text("[]")
    says = "stars is a regression task; onebert review takes single_label, multi_label, token"
    assert says in refused(server, "review", "stars", "--in", labeled, "--tool", "argilla")
    assert says in refused(server, "review", "stars", "--out", tmp_path / "queue.json", "--tool", "argilla")
    assert "--in" in refused(server, "review", "tone", "--tool", "argilla")
