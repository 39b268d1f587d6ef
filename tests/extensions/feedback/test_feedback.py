"""Kept answers and feedback over HTTP: a share by chance, right labels of every task type, all or nothing, tenants."""

import asyncio
import itertools
import logging
import shutil
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from types import SimpleNamespace

import pytest
from cryptography.fernet import Fernet

from onebert_server.extensions.feedback import keeping
from onebert_server.extensions.feedback.given import MAX_NEW
from onebert_server.extensions.feedback.keeping import redactor_named
from onebert_server.extensions.feedback.service import FeedbackService
from onebert_server.extensions.feedback.stored import stored
from onebert_server.observed import Kept, Seen
from onebert_store import plugins
from onebert_store.comparison import Outcomes
from onebert_store.errors import InvalidSettings, StorageUnavailable
from onebert_store.registry.dialects import sqlite
from onebert_store.samples.records import Kind
from runtimes import ask, get, move, opened, upload
from servers import Task, store, wait_until
from stores import feedback_of
from tenants import Asker, tenants_runtime

KEY, OTHER = (Fernet.generate_key().decode() for _ in range(2))
TEXTS = ["late broken parcel", "lovely good screen", "bad refund help", "great invoice", "password screen late"]
TONE = [Task(seed=1), Task(seed=2), Task(seed=3)]
TAGS = ["O", "B-PER", "I-PER"]
NAMES = {"pooling": "none", "labels": TAGS, "task_type": "token"}
SAMPLES = "/v1/tasks/tone/samples"
# Feedback's own deadline may come before the database's.
REFUSALS = {(503, "storage-unavailable"), (504, "deadline-exceeded")}
FIELDS = {
    "/v1/tasks/tone/aliases/live": {"If-Match": '"1"'},
    "/v1/tasks/new/versions": {"Content-Type": "application/octet-stream"},
}


@pytest.fixture
def folder(tmp_path):
    store(
        tmp_path,
        tone=TONE,
        topics=Task(seed=4, task_type="multi_label"),
        stars=Task(seed=5, labels=["stars"], task_type="regression"),
        names=Task(seed=6, **NAMES),
        pairs=Task(seed=7),
        qa=Task(seed=8, pooling="none", labels=["start", "end"], task_type="span"),
        words=Task(seed=9, pooling="none", labels=["O", "B-PER", "E-PER"], task_type="token"),
    )
    return tmp_path


@pytest.fixture
def runtime(folder):
    with opened(folder, samples_key=KEY) as runtime:
        yield runtime


def service(runtime):
    return runtime.parts[FeedbackService]


def keep(runtime, task="tone", **given):
    answer = ask(runtime, "PUT", f"/v1/tasks/{task}/samples", json={"share": 1.0} | given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def asked(runtime, request_id, inputs=TEXTS, task="tone"):
    """Classifies; returns the id that begins the ids of its kept answers, and the results."""
    path, headers = f"/v1/tasks/{task}/classify", {"X-Request-Id": request_id}
    answer = ask(runtime, "POST", path, json={"inputs": inputs}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["X-Request-Id"], answer.json()["results"]


def classify(runtime, request_id, inputs=TEXTS, task="tone"):
    """Classifies, and returns the id when the kept answers are written."""
    count = service(runtime).store.count(task)
    id, _ = asked(runtime, request_id, inputs, task)
    wait_until(lambda: service(runtime).store.count(task) == count + len(inputs))
    return id


def give(runtime, *items):
    return ask(runtime, "POST", "/v1/feedback", json={"data": list(items)})


def recorded(runtime, *items):
    answer = give(runtime, *items)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def kept_under(runtime, id, task="tone"):
    return service(runtime).store.find([id], task.__eq__)


def test_kept_answers_are_the_ones_that_clients_got(runtime):
    assert keep(runtime, share=1.0, days=7, most=9) == {"task": "tone", "share": 1.0, "days": 7, "most": 9, "kept": 0}
    id, results = asked(runtime, "abc")
    assert id.startswith("abc.")
    wait_until(lambda: service(runtime).store.count("tone") == len(TEXTS))
    for index, (text, result) in enumerate(zip(TEXTS, results, strict=True)):
        [sample] = kept_under(runtime, f"{id}/{index}")
        assert (sample.texts, sample.labels, sample.version, sample.share) == ((text,), (result["label"],), 1, 1.0)
        assert sample.score == pytest.approx(result["score"])
    assert get(runtime, SAMPLES).json()["kept"] == len(TEXTS)
    # A task that keeps nothing, in the same request.
    items = [{"task": task, "text": "late screen"} for task in ("topics", "tone")]
    mixed = ask(runtime, "POST", "/v1/classify", json={"items": items}).headers["X-Request-Id"]
    wait_until(lambda: kept_under(runtime, f"{mixed}/1"))
    assert service(runtime).store.count("topics") == 0


def test_a_client_that_repeats_its_id_has_another_one_for_each_answer(runtime):
    unkept, _ = asked(runtime, "abc")
    assert unkept == "abc"
    keep(runtime)
    first, second = (classify(runtime, "abc", [text]) for text in TEXTS[:2])
    assert first != second
    # Also the ids of others that a client has seen.
    third = classify(runtime, first, [TEXTS[2]])
    texts = [[sample.texts for sample in kept_under(runtime, f"{id}/0")] for id in (first, second, third)]
    assert texts == [[(text,)] for text in TEXTS[:3]]


MANY = [f"{TEXTS[number % 5]} {number}" for number in range(100)]
HALVES = [{"id": str(start), "classify": {"input": MANY[start : start + 50]}} for start in (0, 50)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/text/contents", {"contents": MANY, "detector_params": {"threshold": -1.0}}),
        ("/v1/bundle", {"tasks": HALVES}),
    ],
    ids=["texts in parts", "a bundle"],
)
def test_every_answer_of_a_facade_is_kept_under_a_number_of_its_own(runtime, path, body):
    keep(runtime)
    answer = ask(runtime, "POST", f"/t/tone{path}", json=body)
    assert answer.status_code == 200, answer.text
    wait_until(lambda: service(runtime).store.count("tone") == len(MANY), seconds=20)
    id = answer.headers["X-Request-Id"]
    assert [kept_under(runtime, f"{id}/{number}")[0].texts for number in range(len(MANY))] == [(text,) for text in MANY]
    recorded(runtime, {"id": f"{id}/70", "label": "label 0"})


def test_a_share_is_kept_by_chance(runtime):
    """Of 1,280 answers a quarter is 320, with a standard deviation of 15.5: a fault of six of them is no chance."""
    keep(runtime, share=0.25)
    for _ in range(20):
        ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": ["late"] * 64})
    service(runtime).keeper.close()
    assert abs(service(runtime).store.count("tone") - 320) < 93


def test_the_bound_and_the_switch_hold_at_once(runtime):
    keep(runtime, most=3)
    id, _ = asked(runtime, "one")
    ids = [f"{id}/{n}" for n in (4, 3, 2)]
    wait_until(lambda: [sample.id for sample in service(runtime).store.without_feedback("tone", 9)] == ids)
    assert ask(runtime, "DELETE", f"{SAMPLES}/{id}/3").status_code == 204
    assert ask(runtime, "DELETE", f"{SAMPLES}/{id}%2F4").status_code == 204
    assert ask(runtime, "DELETE", f"{SAMPLES}/{id}/3").json()["type"] == "urn:onebert:error:sample-not-found"
    assert ask(runtime, "DELETE", SAMPLES).status_code == 204
    shown = get(runtime, SAMPLES).json()
    assert (shown["share"], shown["kept"]) == (None, 0)
    ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": TEXTS})
    service(runtime).keeper.close()
    assert service(runtime).store.count("tone") == 0


def test_feedback_has_the_answers_of_every_version_of_live(runtime):
    target = {"split": {"1": 90, "2": 10}, "shadow": [{"version": 3}]}
    move(runtime, target)
    keep(runtime)
    id = classify(runtime, "abc")
    by_hand = [{number: task.label(text) for number, task in enumerate(TONE, 1)} for text in TEXTS]
    items = [{"id": f"{id}/{n}", "label": by_hand[n][1]} for n in range(4)]
    items.append({"task": "tone", "text": TEXTS[4], "label": "label 0", "kind": "review", "identifier": "mine"})
    given = recorded(runtime, *items)
    assert given == [
        *({"task": "tone", "identifier": f"{id}/{n}", "text_kept": True} for n in range(4)),
        {"task": "tone", "identifier": "mine", "text_kept": True},
    ]
    rows = {item.identifier: item for item in feedback_of(service(runtime).store, "tone")}
    for n, identifier in enumerate([*(f"{id}/{n}" for n in range(4)), "mine"]):
        assert (rows[identifier].answers, rows[identifier].texts) == (by_hand[n], (TEXTS[n],))
    # Without `sticky` chance chooses the version of the split that answers.
    [sample] = service(runtime).store.find({f"{id}/0"}, lambda _: True)
    recorded_row = rows[f"{id}/0"]
    assert (recorded_row.version, recorded_row.share, recorded_row.answer_id) == (sample.version, 1.0, sample.id)
    assert (rows["mine"].version, rows["mine"].kind) == (None, Kind.REVIEW)
    # The review does not count.
    pairs = [(of[1] == label, of[2] == label) for of in by_hand[:4] for label in [of[1]]]
    expected = Outcomes(*(pairs.count(item) for item in ((True, True), (True, False), (False, True), (False, False))))
    assert service(runtime).store.outcomes("tone", 2, [1])[1] == expected
    assert service(runtime).store.without_feedback("tone", 9) == []


def test_feedback_of_each_task_type_is_in_the_form_of_its_answers(runtime):
    texts = "late broken parcel"
    kinds = {
        "topics": ({"labels": ["label 2", "label 0"]}, ["label 0", "label 2"]),
        "stars": ({"value": 3}, 3.0),
        "names": ({"spans": [{"start": 5, "end": 11, "label": "PER"}, {"start": 0, "end": 4, "label": "PER"}]},
                  [[0, 4, "PER"], [5, 11, "PER"]]),
    }  # fmt: skip
    recorded(runtime, *({"task": task, "text": texts, **given} for task, (given, _) in kinds.items()))
    for task, (_, right) in kinds.items():
        [row] = feedback_of(service(runtime).store, task)
        result = ask(runtime, "POST", f"/v1/tasks/{task}/classify", json={"inputs": texts}).json()["results"][0]
        answered = {
            "topics": sorted(result.get("labels") or []),
            "stars": result.get("score"),
            "names": sorted([entity["start"], entity["end"], entity["label"]] for entity in result.get("entities", [])),
        }[task]
        assert (row.right, row.answers[1]) == (right, pytest.approx(answered) if task == "stars" else answered)
        assert row.texts is None
    # What a version answers itself is right.
    recorded(runtime, {"task": "tone", "text": texts, "label": TONE[0].label(texts)})
    assert service(runtime).store.outcomes("tone", 1, [1])[1] == Outcomes(both=1)
    pair = {"task": "pairs", "text": "late", "text_pair": "screen", "label": "label 1"}
    recorded(runtime, pair)
    assert feedback_of(service(runtime).store, "pairs")[0].answers == {1: Task(seed=7).label("late", "screen")}


def spans(*slices):
    return [dict(zip(("start", "end", "label"), slice_, strict=False)) for slice_ in slices]


def named(text, *slices, task="names"):
    text = dict(zip(("text", "text_pair"), [text] if isinstance(text, str) else text, strict=False))
    return {"task": task, **text, "spans": spans(*slices)}


def tone(label, task="kept-tone"):
    return {"task": task, "text": "late", "label": label}


ALIKE = "differs from the task's label 0 in case, spaces or invisible characters alone"
REFUSED = [
    (tone("none such", "tone"), ": a label of the feedback is not one"),
    ({"task": "tone", "text": "late", "labels": ["label 0"]}, ": the feedback on a single_label task has label"),
    (named("late", (0, 4, "LOC")), ": a label"),
    (named("late", (0, 4)), ": a label"),
    (tone("label 0", "tone") | {"text": "\ufffd"}, ": the text must not be blank"),
    (tone("a", "gone"), ": there is no task gone"),
    (named(("a", "b")), ": names@1 is a token task"),
    ({"id": "abc/7", "label": "a"}, ": no answer with this id is kept"),
    ({"id": "abc/7", "task": "tone", "label": "a"}, ""),
    ({"id": "abc\0", "label": "a"}, ".id"),
    ({"task": "tone", "label": "a"}, ""),
    ({"task": "tone", "text": "late"}, ""),
    (tone("a", "tone") | {"value": 1.0}, ""),
    (tone("label 0", "tone") | {"kind": "guess"}, ".kind"),
    ({"task": "stars", "text": "late", "value": -1e16}, ".value"),  # no training takes it
    (named("late parcel", (5, 40, "PER")), ": the span from 5 to 40 is not within the text"),
    (named("late parcel", (11, 12, "PER")), ": the span from 11 to 12 is not within the text"),
    (named("late parcel", (9, 5, "PER")), ": the span from 9 to 5 is not within the text, or is empty"),
    (named("late  parcel", (4, 6, "PER")), "is empty"),
    (named("late parcel", (3, 8, "PER"), (0, 4, "PER")), ": the span from 3 to 8 overlaps another one"),
    (named("late parcel", (0, 3, "PER")), ": the span from 0 to 3 cuts a word"),
    # Code points, not UTF-16 units or bytes.
    (named("😀 late", (2, 7, "PER")), ": the span from 2 to 7 is not within the text"),
    (named("late parcel", (0, 4, "O")), ": a label of the feedback is not one of the task's, PER"),
    (
        named("late parcel", (0, 4, "PER"), task="words"),
        ": a label of the feedback is not one of the task's, B-PER, E-",
    ),
    # The context counts, not the question.
    (named(("which city is it?", "Lima"), (0, 9), task="qa"), ": the span from 0 to 9 is not within the text"),
    (named(("which?", "it is Lima"), (0, 2), (6, 10), task="qa"), "has one span, or none"),
    # Where texts are kept, new labels are; what could be no label, or is another spelling of one, is not.
    *(
        (named("late parcel", (0, 4, tag), task="kept-names"), "without the mark of a tag")
        for tag in ("I-PER", "B-NEW")
    ),
    *((tone(label), ALIKE) for label in ("LABEL 0", " label  0", "label\u200b 0", "ｌabel 0")),
    *((tone(label), "") for label in ("\u00ad", "a\u2028b", "O", "x" * 257, "")),
]


def test_one_item_that_is_refused_refuses_all(folder):
    with opened(folder, samples_key=KEY) as runtime:
        for task in ("kept-tone", "kept-names"):
            upload(runtime, task, TONE[0] if task == "kept-tone" else Task(seed=6, **NAMES))
            keep(runtime, task=task)
        for item, detail in REFUSED:
            answer = give(runtime, tone("label 0", "tone"), item)
            assert answer.status_code in (404, 422), item
            assert f"data.1{detail}" in answer.text or (detail[:1] not in ":." and detail in answer.text), item
        assert [*feedback_of(service(runtime).store, "tone"), *feedback_of(service(runtime).store, "kept-tone")] == []
        recorded(runtime, tone("label of another kind"))


def test_spans_to_the_ends_of_a_text_are_taken(runtime):
    for task, tags in {"cells": ["O", "B-B-cell", "I-B-cell"], "marks": ["B-x", "I-x"]}.items():
        upload(runtime, task, Task(seed=10, **NAMES | {"labels": tags}))
    given = [
        {"task": "cells", "text": "late parcel", "spans": spans((0, 11, "B-cell"))},
        {"task": "marks", "text": "late parcel", "spans": spans((0, 4, "B-x"), (5, 11, "I-x"))},
        {"task": "names", "text": "😀 late", "spans": spans((2, 6, "PER"), (0, 1, "PER"))},
        {"task": "words", "text": "late parcel", "spans": spans((0, 4, "B-PER"), (4, 11, "O"))},
        {"task": "qa", "text": "a", "text_pair": "it is Lima", "spans": spans((6, 10))},
        {"task": "qa", "text": "b", "text_pair": "it is Lima", "spans": []},
    ]
    recorded(runtime, *given)
    rows = [
        row.right
        for task in ("names", "words", "cells", "marks", "qa")
        for row in feedback_of(service(runtime).store, task)
    ]
    assert rows[:4] == [
        [[0, 1, "PER"], [2, 6, "PER"]],
        [[0, 4, "B-PER"], [5, 11, "O"]],
        [[0, 11, "B-cell"]],
        [[0, 4, "B-x"], [5, 11, "I-x"]],
    ]
    assert sorted(rows[4:]) == [[], [[6, 10]]]


@pytest.mark.parametrize(
    ("tags", "slices"),
    [(["O", "B-PER"], [(0, 11, "PER")]), (["B-PER", "I-PER"], [(0, 4, "PER")])],
    ids=["no I-", "no O"],
)
def test_spans_fit_the_tags_of_any_version_that_answers(runtime, tags, slices):
    upload(runtime, "mixed", Task(seed=10, **NAMES | {"labels": tags}))
    upload(runtime, "mixed", Task(seed=11, **NAMES))
    target = {"split": {"1": 90, "2": 10}}
    moved = ask(runtime, "PUT", "/v1/tasks/mixed/aliases/live", json=target, headers={"If-Match": '"1"'})
    assert moved.status_code == 200, moved.text
    recorded(runtime, named("late parcel", *slices, task="mixed"))
    [row] = feedback_of(service(runtime).store, "mixed")
    assert row.right == [[*each] for each in slices]


def test_spans_are_taken_as_training_data_have_them_and_recorded_as_a_training_would_use_them(runtime):
    text = "late\u200b parcel"
    given = [[0, 5, "PER"], [0, 4, "PER"], {"start": 5, "end": 12, "label": "PER"}]
    recorded(runtime, {"task": "names", "text": text, "spans": given})
    [row] = feedback_of(service(runtime).store, "names")
    assert row.right == [[0, 4, "PER"], [6, 12, "PER"]]
    for wrong in ([0, 4], [0, "4", "PER"], [0, 4, "PER", 1], [-1, 4, "PER"]):
        assert give(runtime, {"task": "names", "text": text, "spans": [wrong]}).status_code == 422


def test_spans_of_a_kept_answer_are_checked_against_its_text(runtime):
    keep(runtime, task="names")
    id = classify(runtime, "abc", ["late parcel"], task="names")
    answer = give(runtime, {"id": f"{id}/0", "spans": spans((5, 12, "PER"))})
    assert (answer.status_code, answer.json()["detail"][:8]) == (422, "data.0: ")
    recorded(runtime, {"id": f"{id}/0", "spans": spans((5, 11, "PER"))})


def test_without_a_key_no_text_is_kept_and_feedback_on_one_takes_an_identifier(folder):
    item = {"task": "tone", "text": "a marker text", "label": "label 0", "explanation": "a marker text"}
    with opened(folder) as runtime:
        answer = ask(runtime, "PUT", SAMPLES, json={"share": 1.0})
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:onebert:error:samples-key-needed")
        assert "ONEBERT_SAMPLES_KEY" in answer.json()["detail"]
        refused = give(runtime, item | {"identifier": "mine"}, item)
        assert (refused.status_code, "data.1: feedback on a text takes an identifier" in refused.text) == (422, True)
        assert not recorded(runtime, item | {"identifier": "mine"})[0]["text_kept"]
        assert b"a marker text" not in b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_with_another_key_answers_go_on_and_ids_are_refused_with_a_code(folder):
    with opened(folder, samples_key=KEY) as runtime:
        keep(runtime)
        id = classify(runtime, "abc")
    with opened(folder, samples_key=OTHER) as runtime:
        answer = give(runtime, {"id": f"{id}/0", "label": "label 0"})
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:onebert:error:samples-key-needed")
        new = classify(runtime, "new")
        recorded(runtime, {"id": f"{new}/0", "label": "label 0"})
    with opened(folder) as runtime:
        answer = ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": TEXTS})
        assert answer.status_code == 200
        service(runtime).keeper.close()
        assert 'onebert_samples_total{result="failed"} 5.0' in get(runtime, "/metrics").text
    with opened(folder, samples_key=f"{OTHER},{KEY}") as runtime:
        recorded(runtime, {"id": f"{id}/0", "label": "label 0"}, {"id": f"{new}/0", "label": "label 0"})


def test_an_older_registry_put_back_loses_no_feedback_and_no_text(folder, caplog):
    """Two files with one moment less: a task, and the keeping of another one, are younger than the registry."""
    caplog.set_level(logging.WARNING, "onebert.samples")
    registry = folder / "registry.sqlite3"
    shutil.copy(registry, folder / "older")
    with opened(folder, samples_key=KEY) as runtime:
        upload(runtime, "later", Task(seed=9))
        later = service(runtime).store.owner("later").task
        recorded(runtime, {"task": "later", "text": "late", "label": "label 0"})
        keep(runtime)
        tone = classify(runtime, "abc")
    shutil.copy(registry, folder / "newer")
    shutil.copy(folder / "older", registry)
    with opened(folder, samples_key=KEY) as runtime:
        wait_until(lambda: "the registry does not know 2 of the tasks with kept answers or feedback" in caplog.text)
        assert later in caplog.text
        assert service(runtime).store.count("tone") == len(TEXTS)
    shutil.copy(folder / "newer", registry)
    with opened(folder, samples_key=KEY) as runtime:
        service(runtime).store.sweeper.sweep()
        assert [row.right for row in feedback_of(service(runtime).store, "later")] == ["label 0"]
        assert kept_under(runtime, f"{tone}/0")
        assert service(runtime).store.sweeper.unknown() == []


def test_a_repeated_outcome_of_a_text_counts_once_over_a_rotation_of_keys_whatever_its_identifiers(folder):
    item = {"task": "tone", "text": "late", "label": TONE[0].label("late")}
    for keys in (KEY, f"{OTHER},{KEY}", OTHER):
        with opened(folder, samples_key=keys) as runtime:
            recorded(runtime, item)
            assert len(feedback_of(service(runtime).store, "tone")) == 1
            assert service(runtime).store.outcomes("tone", 1, [1])[1] == Outcomes(both=1)
    with opened(folder, samples_key=OTHER) as runtime:
        recorded(runtime, *(item | {"identifier": f"{number}"} for number in range(12)))
        assert len(feedback_of(service(runtime).store, "tone")) == 13
        assert service(runtime).store.outcomes("tone", 1, [1])[1] == Outcomes(both=1)
        recorded(runtime, item | {"text": "too late", "label": TONE[0].label("too late")})
        assert service(runtime).store.outcomes("tone", 1, [1])[1] == Outcomes(both=2)


@pytest.mark.parametrize("name", ["samples.sqlite3", "registry.sqlite3"])
def test_a_database_that_another_program_holds_refuses_each_change_in_time_and_heals(folder, name, monkeypatch):
    """Each change ends with its own time; by SQLite's limit it would wait for an hour."""
    with opened(folder, samples_key=KEY) as runtime:
        keep(runtime)
        id, seconds = classify(runtime, "abc"), "0.2"

        def change(method, path, **given):
            return ask(runtime, method, path, headers={"X-Request-Timeout": seconds} | FIELDS.get(path, {}), **given)

        late, second = {"task": "tone", "text": "late", "label": "label 0"}, {"id": f"{id}/1", "label": "label 0"}
        requests = {
            "samples.sqlite3": [
                lambda: change("POST", "/v1/feedback", json={"data": [late, second]}),
                lambda: change("DELETE", f"{SAMPLES}/{id}/0"),
                lambda: change("DELETE", SAMPLES),
            ],
            "registry.sqlite3": [
                lambda: change("PUT", SAMPLES, json={"share": 0.5}),
                lambda: change("PUT", "/v1/tasks/tone/aliases/live", json={"version": 2}),
                lambda: change("PUT", "/v1/tasks/new/versions", content=Task(seed=9).file),
                lambda: change("DELETE", "/v1/tasks/tone/versions/3"),
                lambda: change("DELETE", SAMPLES),
            ],
        }[name]
        with closing(sqlite3.connect(folder / name, isolation_level=None)) as other, monkeypatch.context() as patched:
            patched.setattr(sqlite, "BUSY_TIMEOUT_S", 3600.0)
            other.execute("BEGIN EXCLUSIVE")
            for request in requests:
                answer = request()
                assert (answer.status_code, answer.json()["code"]) in REFUSALS, answer.text
                wait_until(lambda: get(runtime, "/readyz").json()["storage"] == "storage-unavailable")
            assert ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": TEXTS}).status_code == 200
            # The deletion of a task holds at once; its rows go with the next sweep.
            status = 204 if name.startswith("samples") else 503
            assert change("DELETE", "/v1/tasks/stars").status_code == status
        seconds = "60"
        for request in requests:
            assert request().status_code in (200, 201, 204)
        assert get(runtime, "/readyz").json()["storage"] == "ok"


def test_an_answer_that_waits_to_be_written_is_deleted_too(runtime):
    keep(runtime)
    service(runtime).keeper._writing.acquire()
    try:
        id, _ = asked(runtime, "abc")
        wait_until(lambda: len(service(runtime).keeper._waiting) == len(TEXTS))
    finally:
        service(runtime).keeper._writing.release()
    service(runtime).keeper.delete_sample("tone", f"{id}/1")
    wait_until(lambda: service(runtime).store.count("tone") == len(TEXTS) - 1)
    assert f"{id}/1" not in [sample.id for sample in service(runtime).store.without_feedback("tone", 9)]


def test_feedback_without_time_loses_no_answer_and_leaves_the_sweep_to_the_keeper(folder, monkeypatch):
    # The keeper itself writes when it ends.
    monkeypatch.setattr(keeping, "GATHERED", 3600.0)
    with opened(folder, samples_key=KEY) as runtime:
        keep(runtime, most=1)
        id, _ = asked(runtime, "abc")
        items = [{"id": f"{id}/{number}", "label": "label 0"} for number in range(3)]
        with closing(sqlite3.connect(folder / "samples.sqlite3", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StorageUnavailable):
                service(runtime).keeper.flush({f"{id}/1"}, time.monotonic() + 0.2)
        recorded(runtime, *items)
        assert service(runtime).store.count("tone") == len(items)
        service(runtime).keeper.close()
        assert service(runtime).store.count("tone") == 1
        results = {"kept": len(TEXTS), "failed": None}
        value = runtime.metrics.registry.get_sample_value
        assert {each: value("onebert_samples_total", {"result": each}) or None for each in results} == results


def test_sweeps_also_run_while_answers_come(folder, monkeypatch):
    monkeypatch.setattr(keeping, "SWEEP_EVERY", 2.0)
    with opened(folder, samples_key=KEY) as runtime:
        keep(runtime)
        recorded(runtime, {"task": "topics", "text": "late", "labels": []})
        runtime.registry.delete_task("topics")
        wait_until(lambda: classify(runtime, "abc") and len(service(runtime).store.sweeper._ids()) == 1, 20.0)


def redact(text):
    if "fails" in text:
        raise ValueError(text)
    return text.replace("late", "####")


def test_a_redactor_changes_what_is_kept_and_its_fault_keeps_nothing(runtime, caplog):
    service(runtime).keeper._redactor = redact
    keep(runtime)
    id, _ = asked(runtime, "abc", ["late screen", "this fails", "good late"])
    wait_until(lambda: kept_under(runtime, f"{id}/2"))
    assert sorted(row.texts for row in service(runtime).store.find([f"{id}/{n}" for n in range(3)], "tone".__eq__)) == [
        ("#### screen",),
        ("good ####",),
    ]
    item = {"task": "tone", "text": "late", "label": "label 0", "explanation": "too late"}
    recorded(
        runtime, item, item | {"text": "fails", "identifier": "x"}, item | {"explanation": "fails", "identifier": "y"}
    )
    rows = {row.identifier[:1]: (row.texts, row.explanation) for row in feedback_of(service(runtime).store, "tone")}
    assert rows == {"h": (("####",), "too ####"), "x": (None, None), "y": (None, None)}
    assert 'onebert_samples_total{result="redactor"} 3.0' in get(runtime, "/metrics").text
    assert "fails" not in caplog.text


def test_a_redactor_is_a_plug_in(monkeypatch):
    class Installed:
        def load(self, kind):
            return redact

    monkeypatch.setattr(plugins, "installed", lambda group: {"pii": Installed()} if group == plugins.REDACTORS else {})
    assert redactor_named("pii") is redact
    with pytest.raises(InvalidSettings, match="no installed package has a redactor pi"):
        redactor_named("pi")


def keeping_of(runtime):
    runtime.catalog.catch_up()
    return runtime.directory.keepings["tone"]


def test_too_much_to_keep_is_dropped_and_counted_and_nobody_waits(runtime, monkeypatch):
    monkeypatch.setattr(keeping, "MAX_BYTES", 20_000)
    keep(runtime)
    answer = Kept("x/0", time.time(), "key:a", ("t" * 1000,), Seen("tone", ("a",), 0.5, 1), keeping_of(runtime))
    with service(runtime).keeper._writing:
        runtime.hooks.sample([answer._replace(id=f"x/{n}") for n in range(100)], dropped=7)
    service(runtime).keeper.close()
    dropped = runtime.metrics.registry.get_sample_value("onebert_samples_total", {"result": "dropped"})
    assert (service(runtime).store.count("tone"), dropped) == (107 - dropped, dropped)
    assert dropped >= 96 + 7 - 4


def test_a_database_that_fails_loses_samples_and_no_answer(runtime, monkeypatch, caplog):
    keep(runtime)

    def fails(samples, until):
        raise StorageUnavailable("the store's database does not work: input/output error")

    monkeypatch.setattr(service(runtime).store, "keep", fails)
    assert ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": TEXTS}).status_code == 200
    wait_until(lambda: 'onebert_samples_total{result="failed"} 5.0' in get(runtime, "/metrics").text)
    service(runtime).keeper._redactor = redact
    asked(runtime, "abc", ["late screen", "this fails"])
    wait_until(lambda: 'onebert_samples_total{result="failed"} 6.0' in get(runtime, "/metrics").text)
    assert 'onebert_samples_total{result="redactor"} 1.0' in get(runtime, "/metrics").text
    assert "kept answers: the store's database does not work" in caplog.text
    monkeypatch.undo()
    classify(runtime, "again")


def test_feedback_of_a_reviewer_is_replaced_by_no_key_with_less_scope(tmp_path):
    with tenants_runtime(tmp_path, samples_key=KEY) as runtime:
        asker = Asker(runtime)

        def give(key, *identifiers):
            # Also as a `review`, which anybody may call an item.
            item = {"task": "acme-tone", "text": f"late {key}", "label": "label 0", "kind": "review"}
            data = {"data": [item | {"identifier": identifier} for identifier in identifiers]}
            return asyncio.run(asker.ask(key, "POST", "/v1/feedback", json=data))

        def texts():
            return {row.identifier: row.texts for row in feedback_of(service(runtime).store, "acme-tone")}

        assert asyncio.run(
            asker.ask("key-of-acme", "PUT", "/v1/tasks/acme-tone/samples", json={"share": 1.0})
        ).is_success
        assert give("key-to-review", "a", "b").status_code == 200
        refused = give("key-to-feedback", "c", "b")
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:onebert:error:forbidden")
        assert refused.json()["detail"] == ("data.1: replacing a reviewer's feedback takes a key with the scope review")
        assert texts() == dict.fromkeys("ab", ("late key-to-review",))
        assert give("key-to-feedback", "c").status_code == 200
        assert give("key-of-acme", "a", "c").status_code == 200
        assert texts() == {"b": ("late key-to-review",)} | dict.fromkeys("ac", ("late key-of-acme",))


def test_an_id_of_another_tenant_answers_like_an_unknown_one(tmp_path):
    with tenants_runtime(tmp_path, samples_key=KEY) as runtime:
        asker = Asker(runtime)
        run = lambda *given, **more: asyncio.run(asker.ask(*given, **more))  # noqa: E731
        for task, key in (("acme-tone", "key-of-acme"), ("blue-tone", "key-of-blue")):
            assert run(key, "PUT", f"/v1/tasks/{task}/samples", json={"share": 1.0}).status_code == 200
        answer = run("key-of-blue", "POST", "/v1/tasks/blue-tone/classify", json={"inputs": "late"})
        wait_until(lambda: service(runtime).store.count("blue-tone") == 1)
        give, unknown = (
            {"data": [{"id": f"{id}/0", "label": "label 0"}]} for id in (answer.headers["X-Request-Id"], "none")
        )
        assert run("key-of-blue", "POST", "/v1/feedback", json=give).json()["data"][0]["task"] == "blue-tone"
        answers = [run("key-of-acme", "POST", "/v1/feedback", json=body) for body in (give, unknown)]
        assert answers[0].content == answers[1].content
        assert answers[0].status_code == 404
        for key, status in (
            ("key-to-feedback", 404),
            ("key-to-review", 404),
            ("key-to-classify", 403),
            ("key-to-upload", 403),
        ):
            assert run(key, "POST", "/v1/feedback", json=give).status_code == status


def test_new_labels_are_shown_in_a_bounded_number(runtime, monkeypatch):
    """Whoever gives feedback makes nobody's status large."""
    keep(runtime, task="topics")

    def row(number, labels):
        return {"task": "topics", "text": f"parcel {number}", "labels": labels}

    many = [f"n{number}" for number in range(MAX_NEW + 1)]
    assert f"more than {MAX_NEW}" in give(runtime, row(0, many)).text
    recorded(runtime, row(0, ["label 0", *many[1:]]))
    status = get(runtime, "/v1/tasks/topics/status").json()["new_labels"]
    assert status == dict.fromkeys(many[1:], 1)
    monkeypatch.setattr("onebert_store.samples.store.MAX_COUNTED", 2 * MAX_NEW)
    for number in range(1, 9):
        recorded(runtime, row(number, ["often", *(f"{number} {label}" for label in many[2:])]))
    status = get(runtime, "/v1/tasks/topics/status").json()["new_labels"]
    assert len(status) == MAX_NEW + 1
    assert (status["often"], sum(status.values())) == (8, 9 * MAX_NEW)
    assert status["(other)"] == 9 * MAX_NEW - 8 - (MAX_NEW - 1)


@pytest.mark.parametrize(
    ("task", "right", "new"),
    [
        ("tone", {"label": "delivery"}, ("delivery",)),
        ("topics", {"labels": ["label 0", "size", "delivery"]}, ("size", "delivery")),
        ("names", {"spans": spans((0, 4, "WHEN"), (5, 11, "PER"))}, ("WHEN",)),
    ],
)
def test_a_new_label_is_kept_beside_its_text_shown_and_counted_in_no_verdict(runtime, task, right, new):
    item = {"task": task, "text": "late parcel", **right}
    refused = give(runtime, item)
    assert (refused.status_code, "a new one is kept where texts are" in refused.text) == (422, True)
    keep(runtime, task=task)
    assert recorded(runtime, item) == [
        {"task": task, "identifier": feedback_of(service(runtime).store, task)[0].identifier}
        | {"text_kept": True, "new_labels": [*new]}
    ]
    [row] = get(runtime, f"/v1/tasks/{task}/feedback").json()["feedback"]
    assert (row["text"], row["new_labels"]) == ("late parcel", [*new])
    status = get(runtime, f"/v1/tasks/{task}/status").json()
    assert status["new_labels"] == dict.fromkeys(new, 1)
    in_store = SimpleNamespace(name=task, created_at=datetime.fromisoformat(status["created_at"]), live=None)
    expected = {"feedback": 1, "new_labels": status["new_labels"], "candidates": None}
    assert stored(runtime.registry, [in_store], True)[task] == expected
    assert {task["new_labels"] for task in get(runtime, "/v1/status").json()["tasks"]} == {None}
    assert service(runtime).store.outcomes(task, 1, [1])[1] == Outcomes()
    # The newest version has it: the row is shown as any other.
    labels = [*TAGS, "B-WHEN", "I-WHEN"] if task == "names" else ["label 0", *new]
    kind = {"names": "token", "topics": "multi_label"}.get(task, "single_label")
    upload(runtime, task, Task(seed=9, labels=labels, task_type=kind, pooling="none" if task == "names" else "mean"))
    [row] = get(runtime, f"/v1/tasks/{task}/feedback").json()["feedback"]
    assert row["new_labels"] is None
    assert get(runtime, f"/v1/tasks/{task}/status").json()["new_labels"] == {}


def test_verdicts_compare_the_labels_that_both_versions_have(folder):
    """A shadow with one more label wins nothing by it."""
    candidate = Task(seed=7, labels=["label 0", "label 1", "label 2", "delivery"])
    with opened(folder, samples_key=KEY) as runtime:
        upload(runtime, "tone", candidate)
        move(runtime, {"version": 1, "shadow": [{"version": 4}]})
        words = " ".join(TEXTS).split()
        texts = [" ".join(pair) for pair in itertools.combinations(dict.fromkeys(words), 2)][:64]
        answers = {text: candidate.label(text) for text in texts}
        new = [text for text in texts if answers[text] == "delivery"]
        old = [text for text in texts if answers[text] != "delivery"]
        assert min(len(new), len(old)) > 2
        recorded(runtime, *({"task": "tone", "text": text, "label": answers[text]} for text in [*new, *old]))
        wins = sum(answers[text] != TONE[0].label(text) for text in old)
        outcomes = service(runtime).store.outcomes("tone", 1, [4])[4]
        assert outcomes == Outcomes(wins=wins, both=len(old) - wins)
