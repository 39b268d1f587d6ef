"""The training process without a process: what it makes of the rows of a request."""

import base64

import pytest

from bases import tiny_base
from onebert_store.file.format import loads
from onebert_training.device import load_on
from onebert_training.worker import answer
from trainings import THINGS


@pytest.fixture(scope="module")
def base():
    return load_on(str(tiny_base()), "float32", "cpu")


def request(*labels):
    words = zip(labels, ("good", "bad"), strict=False)
    rows = [{"text": f"the {thing} was {word}", "label": label} for label, word in words for thing in THINGS]
    return {"task": "tone", "rows": rows}


def test_a_label_in_brackets_stays_as_it_was_sent(base):
    trained = answer(base, request("[good]", "(none)"))["done"]
    assert sorted(loads(base64.b64decode(trained["content"])).manifest.labels) == ["(none)", "[good]"]


def test_rows_that_cannot_be_used_are_an_error_and_no_end(base):
    assert answer(base, request("good"))["error"]["code"] == "invalid-data"
    assert answer(base, {"rows": [{"text": 1}]})["error"]["code"] == "internal"
