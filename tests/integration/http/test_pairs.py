"""Tasks on pairs whose texts are encoded each on its own, over HTTP, beside other tasks, against the plain model."""

import httpx
import pytest

from onebert_store.errors import InvalidInput
from servers import Task, assert_answers, layouts

pytestmark = layouts

PAIRS = [("late", "it is late"), ("good", "late " * 60), ("it is not good", "it is not good")]


@pytest.fixture(scope="module")
def siamese(client):
    task = Task(pooling="siamese", seed=3).with_golden()
    client.push("same", task.file)
    return task


@pytest.fixture(scope="module")
def joint(client):
    task = Task(seed=4)
    client.push("joint", task.file)
    return task


def test_siamese_and_joint_tasks_answer_pairs(client, siamese, joint):
    items = [(name, pair) for pair in PAIRS for name in ("same", "joint")]
    for (name, pair), result in zip(items, client.classify_items(items), strict=True):
        assert_answers(result, {"same": siamese, "joint": joint}[name].scores(*pair))


def test_both_texts_of_a_pair_count_as_tokens(client, siamese):
    short, cut = client.classify("same", PAIRS[:2])["results"]
    assert (short["tokens"], short["truncated"]) == (3 + 5, False)
    assert (cut["tokens"], cut["truncated"]) == (3 + siamese.manifest["max_length"], True)


def test_a_single_text_is_refused_and_is_not_asked_of_all_tasks(server, client, siamese, joint):
    with pytest.raises(InvalidInput, match="same@1 is a single_label task and takes a pair of texts"):
        client.classify("same", "late")
    assert "same" not in {answer["task"] for answer in client.fanout("late")}
    assert {"same", "joint"} <= {answer["task"] for answer in client.fanout(PAIRS[0])}
    answer = httpx.post(f"{server.url}/v1/tasks/same/classify", json={"inputs": ["late"]})
    assert answer.status_code == 422


def test_words_of_both_texts_explain_an_answer(server, siamese):
    asked = {"inputs": [{"text": "late", "text_pair": "it is late"}], "explain": True}
    [result] = httpx.post(f"{server.url}/v1/tasks/same/classify", json=asked).json()["results"]
    words = result["explanation"]["words"]
    assert [word["field"] for word in words] == ["text_pair"] * 3  # a text of one word has nothing left without it
    whole, label = siamese.scores(*PAIRS[0]), result["label"]
    without = siamese.scores("late", "is late")
    assert words[0]["effect"] == pytest.approx(whole[label] - without[label], abs=1e-4)
