"""`decision.cut`: what is read of a text that is too long, and whether it then abstains, alike wherever it is read."""

import json

import numpy as np
import pytest

import onebert
from bases import tiny_base
from offline import rows_of, score_here
from onebert_encoder.base.base import load_base
from onebert_store.errors import OneBertError
from onebert_store.file.format import load
from onebert_training.data.examples import Split
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.insight.answers import read_answers
from servers import LAYOUTS, Server, Task, assert_answers, tokenizer

ROOM = 48  # the tasks' max_length
SHORT, LONG = "please help my order is late", "please help , the parcel was good " * 12 + "and now it is lost"
PAIRS = [("where is it", LONG), (LONG, LONG), (LONG, "where is it"), ("where is it", SHORT)]
RULES = ("head", "ends", "abstain")


def task_of(rule, pooling="mean", **manifest):
    options = {} if rule is None else {"format": 2, "decision": {"cut": rule}}
    return Task(seed=3, labels=["good", "bad", "ugly"], pooling=pooling, **options, **manifest)


TASKS = {
    **{rule: task_of(rule) for rule in RULES},
    "apart": task_of("ends", "siamese"),
    "span": Task(
        seed=5, labels=["start", "end"], task_type="span", pooling="none", format=2, decision={"cut": "abstain"}
    ),
}


def ends(ids, count):
    """The first and the last half of so many ids, an odd one at the beginning."""
    return ids if len(ids) <= count else ids[: count - count // 2] + ids[len(ids) - count // 2 :]


def expected(text):
    """The scores of the task that reads both ends, by the plain model on ids that are put together here."""
    task, theirs = TASKS["ends"], tokenizer()
    halves = [text] if isinstance(text, str) else text
    cut = theirs(*halves, truncation="longest_first", max_length=ROOM)
    counts = [cut.sequence_ids().count(half) for half in range(len(halves))]
    ids, types = [theirs.cls_token_id], [0]
    for half, count in enumerate(counts):
        piece = [*ends(theirs(halves[half], add_special_tokens=False)["input_ids"], count), theirs.sep_token_id]
        ids, types = ids + piece, types + [half] * len(piece)
    return dict(zip(task.manifest["labels"], softmax(task.reference.logits(ids, types)), strict=True))


def expected_apart(pair):
    task, theirs = TASKS["apart"], tokenizer()
    first, second = (
        [theirs.cls_token_id, *ends(theirs(half, add_special_tokens=False)["input_ids"], ROOM - 2), theirs.sep_token_id]
        for half in pair
    )
    logits = task.reference.logits(first + second, second=len(first))
    return dict(zip(task.manifest["labels"], softmax(logits), strict=True))


def softmax(logits):
    return logits.double().softmax(-1).tolist()


@pytest.fixture(scope="module", params=LAYOUTS["argvalues"], ids=LAYOUTS["ids"])
def client(request, tmp_path_factory):
    with Server(tmp_path_factory.mktemp("cut"), front_ends=request.param) as server, server.client() as client:
        for name, task in TASKS.items():
            client.push(name, task.file)
        yield client


def results(client, name, inputs, **more):
    inputs = [text if isinstance(text, str) else dict(zip(("text", "text_pair"), text, strict=True)) for text in inputs]
    return client.send("POST", f"/v1/tasks/{name}/classify", json={"inputs": inputs, **more}).json()["results"]


def test_both_ends_are_read(client):
    inputs = [LONG, SHORT, *PAIRS]
    for text, result in zip(inputs, results(client, "ends", inputs), strict=True):
        assert_answers(result, expected(text))
        assert result["truncated"] == (text not in (SHORT, PAIRS[3]))
    for pair, result in zip(PAIRS, results(client, "apart", PAIRS), strict=True):
        assert_answers(result, expected_apart(pair))
        assert result["truncated"] == (pair != PAIRS[3])


def test_each_task_of_a_request_cuts_its_own_way(client):
    """One text of several tasks shares computation, unless it is cut differently."""
    fanned = client.send("POST", "/v1/fanout", json={"tasks": list(RULES), "text": LONG}).json()["results"]
    assert_answers(fanned[0], TASKS["head"].scores(LONG))
    assert_answers(fanned[1], expected(LONG))
    assert fanned[2]["scores"] == fanned[0]["scores"]
    assert fanned[0]["scores"] != fanned[1]["scores"]


def test_cut_texts_abstain_and_windows_do_not(client):
    read = results(client, "abstain", [LONG, SHORT])
    assert [(answer["truncated"], answer["abstained"]) for answer in read] == [(True, True), (False, False)]
    read = results(client, "span", PAIRS[:1] + PAIRS[3:])
    assert [(answer["truncated"], answer["abstained"]) for answer in read] == [(True, True), (False, False)]
    whole = {rule: results(client, rule, [LONG], window={"overlap": 8})[0] for rule in RULES}
    assert [answer["truncated"] for answer in whole.values()] == [False] * 3
    assert whole["ends"] == whole["head"]
    assert whole["abstain"] == whole["head"] | {"abstained": False}


@pytest.mark.parametrize("name", [*RULES, "apart", "span"])
def test_files_classifiers_and_evaluation_have_the_answers_of_a_server(client, tmp_path, name):
    inputs = PAIRS if name in ("apart", "span") else [LONG, SHORT, *PAIRS]
    theirs = results(client, name, inputs)
    file = tmp_path / "task.safetensors"
    file.write_bytes(TASKS[name].file)
    here = onebert.load(file, base=str(tiny_base())).classify(inputs)
    halves = [(text, None) if isinstance(text, str) else text for text in inputs]
    rows = [{"text": text} if pair is None else {"text": text, "text_pair": pair} for text, pair in halves]
    for ours, result in zip(map(onebert.as_dict, here), theirs, strict=True):
        assert (ours["truncated"], ours.get("abstained")) == (result["truncated"], result.get("abstained"))
        if name != "span":
            assert_answers(ours, result["scores"])
    pairs = [at for at, row in enumerate(rows) if "text_pair" in row]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(rows[at]) + "\n" for at in pairs))
    score_here(tmp_path / "out", file, tmp_path / "rows.jsonl", text="text", text_pair="text_pair", all_scores=True)
    for row, result in zip(rows_of(tmp_path / "out"), [theirs[at] for at in pairs], strict=True):
        assert (row["task_truncated"], row.get("task_abstained")) == (result["truncated"], result.get("abstained"))
        if name != "span":
            assert row["task_scores"] == pytest.approx(result["scores"], abs=1e-4)
    if name != "span":
        delta, base = load(file), load_base(str(tiny_base()))
        tokens = tokenize(base, delta.manifest, inputs)
        split = Split(tuple(inputs), np.zeros(len(inputs), int))
        answers = read_answers(delta.manifest, split, tokens, predict_delta(base, delta, tokens))
        assert answers.answer == [result["label"] for result in theirs]
        abstained = [result.get("abstained") for result in theirs]
        assert (answers.abstained is None) == (None in abstained)
        assert answers.abstained is None or answers.abstained.tolist() == abstained


def rows_for(seed):
    """Rows whose last word alone tells the label, far behind what a task of twelve tokens reads of the beginning."""
    words = np.random.default_rng(seed).choice(["parcel", "order", "invoice", "screen", "refund"], (60, 30))
    labels = ["praise", "complaint"] * 30
    last = {"praise": "good", "complaint": "bad"}
    texts = [" ".join([*row, last[label]]) for row, label in zip(words, labels, strict=True)]
    return {"text": texts, "label": labels}


@pytest.mark.parametrize("rule", RULES)
def test_training_reads_what_its_file_reads(tmp_path, rule):
    data = {"train": rows_for(1), "validation": rows_for(2), "test": rows_for(3)}
    options = {"method": "head", "max_length": 12, "cut": rule}
    trained = onebert.train(data, task="tone", out=tmp_path / "tone.safetensors", base=str(tiny_base()), **options)
    manifest = load(trained.file).manifest
    assert (manifest.decision and manifest.decision.cut) == (None if rule == "head" else rule)
    assert manifest.training["card"]["train"]["cut"] == rule
    answered = onebert.load(trained.file, base=str(tiny_base())).classify(data["test"]["text"])
    right = np.mean([answer.label == label for answer, label in zip(answered, data["test"]["label"], strict=True)])
    assert right == trained.test["accuracy"]
    # The beginning says nothing of the label, so that no head is right about many more than half of the rows.
    assert (right == 1.0) == (rule == "ends")
    assert [answer.abstained for answer in answered] == [True if rule == "abstain" else None] * 60
    if rule == "abstain":
        assert manifest.reference.abstained == manifest.reference.rows == 60


def test_a_regression_cannot_abstain(tmp_path):
    data = [(f"late by {number} days", number / 4) for number in range(40)]
    with pytest.raises(OneBertError, match="cut: a regression task has head or ends"):
        onebert.train(data, task="amount", out=tmp_path / "a", base=str(tiny_base()), method="head", cut="abstain")
