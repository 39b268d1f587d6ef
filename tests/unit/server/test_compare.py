"""What the commands that compare versions say of files and answers, against the same numbers computed whole."""

import json
from typing import ClassVar

import numpy as np
import pytest

from fake_servers import FakeServer, Handler
from onebert_server.cli.compare.asking import ask
from onebert_server.cli.compare.differences import corrected
from onebert_server.cli.compare.reading import files_of_tasks
from onebert_store.errors import InvalidData


def test_the_false_discovery_rate_is_kept_as_benjamini_and_hochberg_say():
    draw = np.random.default_rng(5)
    for ps in ([], [0.2], [0.01, 0.01, 1.0], list(draw.random(40) ** 3)):
        ordered = sorted(ps)
        # The smallest rate at which the step-up procedure rejects the test: written out, and not sorted back.
        expected = [
            min(p * len(ps) / (rank + 1) for rank, p in enumerate(ordered) if p >= own) if ps else 0.0 for own in ps
        ]
        assert corrected(ps) == pytest.approx(expected)


def test_the_rows_of_each_task_are_found_by_its_name(tmp_path):
    for name in ("tone.csv", "acme.tone.jsonl.gz", "notes.txt", ".hidden.csv"):
        (tmp_path / name).touch()
    (tmp_path / "topic").mkdir()
    assert {name: path.name for name, path in files_of_tasks(tmp_path).items()} == {
        "tone": "tone.csv",
        "acme.tone": "acme.tone.jsonl.gz",
        "topic": "topic",
    }
    (tmp_path / "tone").mkdir()
    with pytest.raises(InvalidData, match="two have the rows of tone: "):
        files_of_tasks(tmp_path)


class Busy(Handler):
    """Is busy for one item of each first request; what is asked again it answers."""

    asked: ClassVar[list[tuple[list[str], bool]]] = []

    def answer(self):
        body = json.loads(self.body())
        texts = [one["text"] for one in body["items"]]
        self.asked.append((texts, body.get("partial", False)))
        error = {"code": "queue-full", "title": "Full", "detail": "the queue is full"}
        results = [
            {"task": "tone", "error": error}
            if body.get("partial") and text == "7"
            else {"task": "tone", "version": 1, "digest": "sha256:1", "label": text, "score": 0.5}
            for text in texts
        ]
        self.reply(200, json.dumps({"results": results}).encode(), {"Content-Type": "application/json"})

    do_POST = answer


def test_what_a_busy_server_drops_is_asked_again():
    items = [("tone", str(number)) for number in range(150)]
    with FakeServer(Busy) as server:
        assert [one.label for one in ask(server.url, None, items)] == [text for _, text in items]
    first = sorted(len(texts) for texts, partial in Busy.asked if partial)
    assert first == [22, 64, 64]
    assert [texts for texts, partial in Busy.asked if not partial] == [["7"]]
