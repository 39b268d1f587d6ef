"""A committee as a user makes it: few rows are trained, their folds pushed, and asked together over HTTP."""

import json

import numpy as np
import pytest

from bases import tiny_base
from ended import succeeded
from servers import both_layouts
from trainings import write_tone

TEXTS = ["the parcel was very good and late", "the invoice was very bad", "it is late"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Where a task of 48 rows shall be trained."""
    folder = tmp_path_factory.mktemp("few")
    write_tone(folder / "data")
    return folder


@pytest.mark.slow
@both_layouts
def test_folds_of_few_rows_answer_together_with_a_spread(server, onebert, files):
    out = files / "tone.safetensors"
    if not out.exists():
        options = ("--epochs", "4", "--start", "fresh", "--method", "layernorm", "--lr", "0.02", "--max-length", "16")
        where = ("--data", files / "data/train.csv", "--base", tiny_base(), "--device", "cpu", "--out", out)
        succeeded(onebert("train", "--task", "tone", *where, *options, "--committee"))
    members = sorted(files.glob("tone-committee-*.safetensors"))
    assert len(members) == 5
    at = ("--url", server.url)
    code, _, err = onebert("push", *members, "--committee", *at)
    assert (code, "tone is new" in err) == (1, True)
    pushed = succeeded(onebert("push", *members, out, "--committee", *at))
    assert "tone@committee: new → 20 % 2, 20 % 3, 20 % 4, 20 % 5, 20 % 6" in str(pushed)
    with server.client() as web:
        found = web.send("POST", "/v1/tasks/tone/classify", json={"inputs": TEXTS, "committee": True}).json()
        each = [web.send("POST", f"/v1/tasks/tone@{n}/classify", json={"inputs": TEXTS}).json() for n in range(2, 7)]
        live = web.send("POST", "/v1/tasks/tone/classify", json={"inputs": TEXTS}).json()
    assert (found["versions"], live["version"]) == ([2, 3, 4, 5, 6], 1)
    for index, answered in enumerate(found["results"]):
        scores = [one["results"][index]["scores"] for one in each]
        means = {label: np.mean([one[label] for one in scores]) for label in scores[0]}
        assert answered["scores"] == pytest.approx(means)
        assert answered["label"] == max(means, key=means.get)
        assert answered["spread"] == pytest.approx(np.std([one[answered["label"]] for one in scores]))
    assert max(one["spread"] for one in found["results"]) > 0, "the folds were trained on other rows"
    again = json.loads(onebert("push", *members, "--committee", "--json", *at)[1])
    assert (again["created"], again["promoted"]["from"], again["promoted"]["to"]) == (False, 2, 2)


@pytest.mark.parametrize("options", [("a", "b"), ("a", "--committee"), ("a", "b", "--committee", "--promote")])
def test_one_file_or_a_committee_is_pushed(onebert, options):
    code, out, err = onebert("push", *options)
    assert (code != 0, out) == (True, "")
    assert "push one FILE, or 2 to 16 of them with --committee" in err
