"""The training process without a process: the order in which it answers, and what it leaves when nobody waits."""

import base64
import io
import json
import tempfile
from itertools import count
from math import inf
from pathlib import Path

from bases import tiny_base
from onebert_store.file.format import loads
from onebert_training.device import load_on
from onebert_training.worker import Worker, train_examples
from trainings import THINGS

IMPROVEMENT = {"cancelled": 0}


class Answers(io.StringIO):
    """Takes requests at the first step of an improvement, which ends after three answers; `order` has their numbers.

    `temporary` has the temporary folders at that step.
    """

    def __init__(self, at_first_step):
        super().__init__()
        self.order, self._at_first_step = [], at_first_step

    def write(self, line):
        message = json.loads(line)
        if "done" in message:
            self.order.append(message["number"])
            if len(self.order) == 3:
                self.worker.take(IMPROVEMENT)
        elif message["number"] == 0 and self._at_first_step:
            self.temporary = list(Path(tempfile.gettempdir()).glob("tmp*"))
            for request in self._at_first_step:
                self.worker.take(request)
            self._at_first_step = []
        return len(line)


def examples(number, work, each=8, improve=False):
    rows = [
        {"text": f"the {THINGS[i % 6]} was {word} {i}", "label": word} for i in range(each) for word in ("good", "bad")
    ]
    return {"number": number, "task": f"task-{number}", "rows": rows, "improve": improve, "work": work}


def answered(*at_first_step, again=0):
    """The answers, with their `order`; `at_first_step` comes while the improvement 0 is computed."""
    answers = Answers(list(at_first_step))
    answers.worker = worker = Worker(load_on(str(tiny_base()), "float32", "cpu"), answers)
    worker.take(examples(0, inf, improve=True))
    for _ in range(1 + again):
        worker.answer()
    return answers


def test_a_head_goes_before_an_improvement_and_one_of_less_than_half_the_work_before_a_head():
    numbers = count(1)
    large, as_large, small = (examples(next(numbers), work) for work in (100, 60, 49))
    assert answered(large, as_large, small).order == [3, 1, 2]


def test_what_nobody_waits_for_any_more_is_computed_no_further(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answers = answered(examples(1, 10), {"cancelled": 1}, IMPROVEMENT, examples(2, 10), again=1)
    assert answers.order == [2]
    assert not answers.temporary, "a process that is killed would leave it"


def test_a_label_in_brackets_stays_as_it_was_sent():
    request = examples(1, 1)
    for row in request["rows"]:
        row["label"] = {"good": "[good]", "bad": "(none)"}[row["label"]]
    trained = train_examples(load_on(str(tiny_base()), "float32", "cpu"), request, lambda *_: None)
    assert sorted(loads(base64.b64decode(trained["content"])).manifest.labels) == ["(none)", "[good]"]
