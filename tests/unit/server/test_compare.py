"""What the commands that compare versions say of files and answers, against the same numbers computed whole."""

import json
from typing import ClassVar

import numpy as np
import pytest

from fake_servers import FakeServer, Handler
from onebert_server.cli.compare.asking import ask
from onebert_server.cli.compare.differences import by_symbol, corrected, norms
from onebert_server.cli.compare.labeled import LabeledRow
from onebert_server.cli.compare.pinned import Answers, Pinned, ReplayedRow, compare, read_answers, written
from onebert_server.cli.compare.reading import TaskRows, files_of_tasks
from onebert_store.errors import InvalidData
from tiny_delta import MIDDLE, SPEC, make_delta, tensors_for


def rms(numbers):
    return float(np.sqrt(np.square(numbers.astype(np.float64)).mean()))


def product(tensors, module):
    return tensors["lora_B." + module].astype(np.float64) @ tensors["lora_A." + module].astype(np.float64)


def test_low_rank_products_are_apart_by_their_difference():
    """The default method's matrices are such products; factors of equal products need not be equal."""
    module = MIDDLE.format(1)
    one, other = tensors_for(seed=1), tensors_for(seed=2)
    (found,) = (
        each
        for each in norms(make_delta(tensors=one), make_delta(tensors=other), SPEC.symbols)
        if each["symbol"] == "W_m2"
    )
    assert (found["kind"], found["layer"]) == ("low-rank", 1)
    assert found["a"] == pytest.approx(rms(product(one, module)))
    assert found["apart"] == pytest.approx(rms(product(one, module) - product(other, module)))
    turned = one | {"lora_A." + module: -one["lora_A." + module], "lora_B." + module: -one["lora_B." + module]}
    same = norms(make_delta(tensors=one), make_delta(tensors=turned), SPEC.symbols)
    assert [each["apart"] for each in same] == pytest.approx([0.0] * 3, abs=1e-6)
    assert {each["symbol"]: list(each["layers"]) for each in by_symbol(same)} == {"b_q": [0], "g_LN2": [1], "W_m2": [1]}


def test_what_one_version_alone_changes_is_apart_by_all_of_it():
    module = MIDDLE.format(1)
    without = {name: tensor for name, tensor in tensors_for().items() if not name.endswith(module)}
    found = {each["symbol"]: each for each in norms(make_delta(), make_delta(tensors=without), SPEC.symbols)}
    assert found["W_m2"]["b"] is None
    assert found["W_m2"]["apart"] == pytest.approx(found["W_m2"]["a"])
    assert found["b_q"]["apart"] == 0.0


def test_the_false_discovery_rate_is_kept_as_benjamini_and_hochberg_say():
    draw = np.random.default_rng(5)
    for ps in ([], [0.2], [0.01, 0.01, 1.0], list(draw.random(40) ** 3)):
        ordered = sorted(ps)
        # The smallest rate at which the step-up procedure rejects the test: written out, and not sorted back.
        expected = [
            min(p * len(ps) / (rank + 1) for rank, p in enumerate(ordered) if p >= own) if ps else 0.0 for own in ps
        ]
        assert corrected(ps) == pytest.approx(expected)


ROWS = TaskRows("tone", [], [LabeledRow(text, {"line": line}, None) for line, text in enumerate(("one", "two"), 2)])


def pinned(*rows, dtype="float32", digest="sha256:1", version=1):
    made = [ReplayedRow(input=text, answer=answer, scores=[score]) for text, answer, score in rows]
    return Pinned(version=version, digest=digest, dtype=dtype, rows=made)


@pytest.mark.parametrize(
    ("dtypes", "off", "red"),
    [
        (("float32", "float32"), 0.00009, False),
        (("float32", "float32"), 0.00011, True),
        (("float32", "bfloat16"), 0.03, False),
        (("bfloat16", "float32"), 0.05, True),
        (("bfloat16", "int8"), 0.2, False),
    ],
)
def test_scores_may_be_off_by_the_rounding_of_the_coarser_dtype(dtypes, off, red):
    before, after = dtypes
    kept = pinned(("1", "good", 0.9), ("2", "bad", 0.6), dtype=before)
    found = compare(kept, pinned(("1", "good", 0.9), ("2", "bad", 0.6 + off), dtype=after), ROWS)
    assert (found["red"], found["differ"], found["largest"]) == (red, 0, pytest.approx(off))
    # The number of a regression may be large, and rounding grows with it.
    kept = pinned(("1", "", 4000.0), ("2", "", 0.5), dtype=before)
    assert compare(kept, pinned(("1", "", 4000.0 * (1 + off)), ("2", "", 0.5), dtype=after), ROWS)["red"] == red


def test_other_answers_are_red_and_other_versions_and_rows_are_said():
    kept = pinned(("1", "good", 0.5), ("2", "bad", 0.6))
    found = compare(kept, pinned(("1", "bad", 0.5), ("2", "bad", 0.6)), ROWS)
    assert (found["red"], found["differ"], found["first"]) == (True, 1, "line 2: good 0.5000 → bad 0.5000")
    assert compare(kept, pinned(digest="sha256:2", version=3), ROWS) == {
        "changed": "version 1 was live, now it is version 3"
    }
    assert "its rows have changed" in compare(kept, pinned(("1", "good", 0.5)), ROWS)["changed"]


def test_a_file_of_answers_is_read_back_and_no_other(tmp_path):
    answers = Answers(tasks={"tone": pinned(("1", "good", 0.5)), "a": pinned(digest="sha256:2")})
    file = tmp_path / "answers.json"
    file.write_bytes(written(answers))
    assert read_answers(file) == answers
    assert written(read_answers(file)) == file.read_bytes()
    for content in (b"", b"[]", b'{"format": 2, "tasks": {}}', b'{"tasks": {"a": {}}}', b'{"tasks": {}, "more": 1}'):
        file.write_bytes(content)
        with pytest.raises(InvalidData, match="is no file of answers"):
            read_answers(file)


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
