"""The review queue over HTTP beside scores from the models themselves, and the lists of kept answers and feedback."""

import hashlib
from contextlib import contextmanager

import pytest
from cryptography.fernet import Fernet

from bases import wide_base
from onebert_server.access.keys import Holder
from onebert_server.access.principal import Principal, Quotas, Scope
from onebert_server.extensions.feedback import reviews
from onebert_server.extensions.feedback.service import FeedbackService
from runtimes import ask, get, opened
from servers import Task, store, wait_until

KEY = Fernet.generate_key().decode()
WORDS = "late broken parcel lovely good screen bad refund help great invoice password".split()
TEXTS = [f"{word} {other} please" for word in WORDS[:4] for other in WORDS[4:]]
TONE = [Task(seed=seed, labels=["a", "b", "c"]) for seed in (1, 2, 3)]
TOPICS = Task(seed=4, task_type="multi_label", labels=["x", "y", "z"])
QUEUE = "/v1/tasks/tone/review"


def service(runtime):
    return runtime.parts[FeedbackService]


@contextmanager
def filled(folder):
    """A runtime in which every task has kept its answers to all texts."""
    tasks = {"tone": TONE, "topics": TOPICS, "stars": Task(seed=5, labels=["stars"], task_type="regression")}
    store(folder, names=Task(seed=6, pooling="none", labels=["O", "B-X"], task_type="token"), **tasks)
    with opened(folder, samples_key=[KEY]) as runtime:
        for task in ("tone", "topics", "stars", "names"):
            assert ask(runtime, "PUT", f"/v1/tasks/{task}/samples", json={"share": 1.0}).status_code == 200
            for start in range(0, len(TEXTS), 32):
                body = {"inputs": TEXTS[start : start + 32]}
                ask(
                    runtime, "POST", f"/v1/tasks/{task}/classify", json=body, headers={"X-Request-Id": f"{task}{start}"}
                )
        count = service(runtime).store.count
        wait_until(lambda: all(count(task) == len(TEXTS) for task in ("tone", "topics", "stars", "names")))
        yield runtime


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """For tests that change nothing."""
    with filled(tmp_path_factory.mktemp("review")) as runtime:
        yield runtime


@pytest.fixture
def runtime(tmp_path):
    with filled(tmp_path) as runtime:
        yield runtime


def mean_to(runtime, alias, versions):
    split = {str(number): share for number, share in versions.items()}
    current = ask(runtime, "GET", f"/v1/tasks/tone/aliases/{alias}")
    condition = {"If-Match": current.headers["ETag"]} if current.status_code == 200 else {"If-None-Match": "*"}
    moved = ask(runtime, "PUT", f"/v1/tasks/tone/aliases/{alias}", json={"split": split}, headers=condition)
    assert moved.status_code == 200, moved.text


def queue(runtime, query="limit=100", task="tone"):
    answer = ask(runtime, "GET", f"/v1/tasks/{task}/review?{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def margin(task, text):
    second, best = sorted(task.scores(text).values())[-2:]
    return best - second


def test_by_margin_the_least_certain_text_comes_first(still):
    page = queue(still)
    expected = sorted(TEXTS, key=lambda text: margin(TONE[0], text))
    assert [item["text"] for item in page["items"]] == expected
    assert (page["task_type"], page["labels"], page["compared"]) == ("single_label", ["a", "b", "c"], len(TEXTS))
    for item in page["items"]:
        assert item["answers"][0]["scores"] == pytest.approx(TONE[0].scores(item["text"]), abs=1e-4)
    assert len(queue(still, "limit=3")["items"]) == 3


def test_of_a_multi_label_task_a_score_beside_its_threshold_comes_first(still):
    items = queue(still, task="topics")["items"]
    distances = [min(abs(score - 0.5) for score in item["answers"][0]["scores"].values()) for item in items]
    assert distances == sorted(distances)
    assert len(items) == len(TEXTS)


def test_by_disagreement_texts_come_first_on_which_versions_differ(runtime):
    mean_to(runtime, "live", {1: 50, 2: 30, 3: 20})
    texts = [item["text"] for item in queue(runtime, "by=disagreement&limit=100")["items"]]

    def key(text):
        answers = [max(task.scores(text), key=task.scores(text).get) for task in TONE]
        return max(answers.count(answer) for answer in answers), margin(TONE[0], text)

    assert texts == sorted(TEXTS, key=key)
    assert len({key(text)[0] for text in TEXTS}) > 1


def test_a_queue_is_chosen_from_the_latest_texts(still, monkeypatch):
    monkeypatch.setattr(reviews, "MAX_COMPARED", 3)
    page = queue(still)
    assert page["compared"] == 3
    assert {item["text"] for item in page["items"]} == {*TEXTS[-3:]}


def test_a_queue_is_a_request_of_its_readers_quotas(runtime):
    quotas = Quotas(tokens=0.001)
    who = Principal("key:slow", frozenset((Scope.REVIEW, Scope.CLASSIFY)), ("*",), quotas=quotas)
    runtime.keys.replace({hashlib.sha256(b"slow").digest(): Holder(who)})
    headers = {"Authorization": "Bearer slow"}
    assert ask(runtime, "GET", f"{QUEUE}?limit=1", headers=headers).status_code == 200
    # The next one would have to wait for longer than its time.
    classifying = ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": "late"}, headers=headers)
    for refused in (classifying, ask(runtime, "GET", f"{QUEUE}?limit=1", headers=headers)):
        assert (refused.status_code, refused.json()["code"]) == (429, "over-quota")


def test_a_text_of_more_windows_than_a_version_reads_keeps_no_others_from_the_queue(tmp_path):
    """The version that answered it before reads no windows."""
    decision = {"window": {"tokens": 16, "overlap": 4, "reduction": "mean"}}
    store(tmp_path, tone=[Task(seed=1), Task(seed=2, format=2, decision=decision)])
    with opened(tmp_path, samples_key=[KEY]) as runtime:
        ask(runtime, "PUT", "/v1/tasks/tone/samples", json={"share": 1.0})
        endless = " ".join("abcdefghij" * 3276)
        ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": [*TEXTS[:3], endless, *TEXTS[3:6]]})
        wait_until(lambda: service(runtime).store.count("tone") == 7)
        mean_to(runtime, "live", {1: 50, 2: 50})
        page = queue(runtime)
    assert {item["text"] for item in page["items"]} == {*TEXTS[:6]}


def test_texts_of_a_base_that_is_not_loaded_have_no_queue(tmp_path):
    store(tmp_path, tone=TONE[0])
    with opened(tmp_path, samples_key=[KEY]) as runtime:
        ask(runtime, "PUT", "/v1/tasks/tone/samples", json={"share": 1.0})
        ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": TEXTS})
        wait_until(lambda: service(runtime).store.count("tone") == len(TEXTS))
    with opened(tmp_path, base=(str(wide_base()),), samples_key=[KEY]) as other:
        refused = get(other, QUEUE)
        assert (refused.status_code, refused.json()["code"]) == (503, "version-unavailable")


def test_a_token_task_begins_with_the_text_whose_least_certain_word_is_least_certain(still):
    items = queue(still, task="names")["items"]
    assert len(items) == len(TEXTS)

    def least(words):
        return min(word["score"] for word in words)

    body = {"items": [{"task": "names@1", "text": text} for text in TEXTS]}
    answered = ask(still, "POST", "/v1/classify", json=body).json()["results"]
    scores = {text: least(result["words"]) for text, result in zip(TEXTS, answered, strict=True)}
    assert [scores[item["text"]] for item in items] == pytest.approx(sorted(scores.values()))
    for item in items:
        [answer] = item["answers"]
        [native] = [result for text, result in zip(TEXTS, answered, strict=True) if text == item["text"]]
        assert [(each["start"], each["end"], each["label"]) for each in answer["entities"]] == [
            (each["start"], each["end"], each["label"]) for each in native["entities"]
        ]
    assert len(queue(still, "by=disagreement", task="names")["items"]) == 20, "the default limit"


def test_what_has_no_queue_is_refused(still):
    for by in ("margin", "disagreement"):
        refused = get(still, f"/v1/tasks/stars/review?by={by}")
        assert refused.status_code == 422
        assert refused.json()["detail"].endswith("task, which has no queue")
    for rows in ("feedback", "sample-rows"):
        assert get(still, f"/v1/tasks/tone/{rows}?after=%00").status_code == 422


def test_a_labeled_text_leaves_the_queue_and_is_listed(runtime):
    first, second, third, *rest = queue(runtime)["items"]
    given = [
        {"task": "tone", "text": third["text"], "label": "a", "identifier": "mine"},
        {"id": first["id"], "label": "b", "kind": "review", "explanation": "sarcasm"},
        {"id": second["id"], "label": "c"},
        {"task": "tone", "text": "a text of no answer", "label": "a", "kind": "correction"},
    ]
    assert ask(runtime, "POST", "/v1/feedback", json={"data": given}).status_code == 200
    assert [item["id"] for item in queue(runtime)["items"]] == [item["id"] for item in rest]
    pages = pages_of(runtime, "feedback", "limit=2")
    assert [len(page) for page in pages] == [2, 2, 0]
    rows = {row["text"]: (row["kind"], row["label"], row.get("explanation")) for page in pages for row in page}
    assert rows == {
        first["text"]: ("review", "b", "sarcasm"),
        second["text"]: ("outcome", "c", None),
        third["text"]: ("outcome", "a", None),
        "a text of no answer": ("correction", "a", None),
    }
    samples = [row for page in pages_of(runtime, "sample-rows", "limit=10") for row in page]
    assert sorted(row["text"] for row in samples) == sorted(TEXTS)
    right = {row["text"]: row["right"]["label"] for row in samples if row.get("right")}
    assert right == {first["text"]: "b", second["text"]: "c"}
    assert all(row["share"] == 1.0 and row["version"] == 1 and len(row["labels"]) == 1 for row in samples)


def test_a_kept_answer_of_a_regression_has_its_number(still):
    task = Task(seed=5, labels=["stars"], task_type="regression")
    [rows] = pages_of(still, "sample-rows", "limit=50", "stars")
    numbers = {row["text"]: row["score"] for row in rows}
    assert numbers == pytest.approx({text: task.logits(text).item() for text in TEXTS}, abs=1e-4)


def test_no_spans_are_listed_as_spans_and_no_labels_as_labels(runtime):
    wait = {task: service(runtime).store.page(task, "", 1)[0][0][0].id for task in ("names", "topics")}
    given = [{"id": wait["names"], "spans": []}, {"id": wait["topics"], "labels": []}]
    assert ask(runtime, "POST", "/v1/feedback", json={"data": given}).status_code == 200
    for task, field in (("names", "spans"), ("topics", "labels")):
        [[row]] = pages_of(runtime, "feedback", "limit=2", task)
        [right] = [row["right"] for row in pages_of(runtime, "sample-rows", "limit=50", task)[0] if row.get("right")]
        for shown in (row, right):
            assert {name: shown.get(name) for name in ("label", "labels", "spans", "value")} == {
                **dict.fromkeys(("label", "labels", "spans", "value")),
                field: [],
            }


def pages_of(runtime, path, query, task="tone"):
    rows_of_pages, after = [], ""
    while after is not None:
        page = get(runtime, f"/v1/tasks/{task}/{path}?{query}&after={after}").json()
        [rows] = [value for value in page.values() if isinstance(value, list)]
        rows_of_pages.append(rows)
        after = page.get("next")
    return rows_of_pages
