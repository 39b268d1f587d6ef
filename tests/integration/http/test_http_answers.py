"""What an answer over HTTP may hold: a bad one spoils no other, and none is larger than a server makes in peace."""

import re
from pathlib import Path

import httpx
import pytest

from onebert_store.errors import TooLarge
from servers import Task, assert_answers, layouts, overflowing_on

pytestmark = [layouts]

TEXT = "late"


@pytest.fixture(scope="module")
def good(client):
    task = Task(seed=1)
    client.push("good", task.file)
    return task


@pytest.fixture(scope="module")
def overflowing(client):
    client.push("overflows", overflowing_on(TEXT).file)
    return TEXT


def test_an_answer_that_is_not_finite_is_one_entry_of_many(server, client, good, overflowing):
    for results in (
        client.fanout(overflowing),
        client.classify_items([("good", overflowing), ("overflows", overflowing), ("good", "late")])[:2],
    ):
        fine, failed = results
        assert_answers(fine, good.scores(overflowing))
        assert (failed["task"], failed["version"], failed["error"]["code"]) == ("overflows", 1, "answer-not-finite")
        assert failed.keys() == {"task", "version", "digest", "error"}


def test_an_answer_that_is_not_finite_is_a_problem(server, client, overflowing):
    answer = httpx.post(f"{server.url}/v1/tasks/overflows/classify", json={"inputs": ["late", overflowing]})
    assert (answer.status_code, answer.json()["code"]) == (422, "answer-not-finite")
    assert "overflows@1" in answer.json()["detail"]


def test_an_answer_of_hundreds_of_megabytes_is_refused(server, client, good):
    """A few kilobytes ask for every label of a task with the widest head there may be, a thousand times."""
    wide = Task(labels=[f"{n} " + "label" * 40 for n in range(4096)])
    client.push("wide", wide.file)
    with pytest.raises(TooLarge, match="over 16777216 bytes"):
        client.fanout("it is late", ["wide"] * 1024)
    assert len(client.classify("wide", "it is late")["results"][0]["scores"]) == 4096
    few = client.fanout("it is late", ["wide"] * 1024, top_k=1)
    assert [len(result["scores"]) for result in few] == [1] * 1024
    assert_answers(client.classify("good", "late")["results"][0], good.scores("late"))


def test_spans_of_very_long_tokens_are_refused_as_they_are_read(server, client):
    """Whitespace between words belongs to no token, so that a span of few tokens may hold most of a long context."""
    client.push("spans", Task(labels=["start", "end"], task_type="span", pooling="none", seed=3).file)
    context = (" " * 2_000).join(["late", "now"] * 15)
    before = peak_memory(server)
    with pytest.raises(TooLarge, match="over 16777216 bytes"):
        client.fanout(("what is late", context), ["spans"] * 1024, top_k=20)
    assert peak_memory(server) < before + 2**27  # all answers together would be half a gigabyte


def peak_memory(server):
    """The most bytes that a process of the server has ever held at once, of the largest of them."""
    processes = {server.process.pid} | server.children()
    peaks = [re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1] for pid in processes]
    return max(map(int, peaks)) * 1024
