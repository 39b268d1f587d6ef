"""Gates in the file of `onebert apply`: set before the moves that they judge, changed, deleted, and refusing."""

import json
import re

import pytest

from onebert_server.cli.apply.form import read_form
from onebert_server.client import Client
from onebert_store.file.fingerprint import fingerprint_of
from servers import Task, run_onebert, spec

LABELS = ["complaint", "question", "praise"]
TEXTS = ["late broken parcel", "good day", "help password", "lovely screen refund", "bad invoice", "great call"]


@pytest.fixture
def place(tmp_path):
    """Delta files of two versions that differ, and rows that the first one answers rightly."""
    tasks = [Task(seed=seed, labels=LABELS) for seed in (16, 21)]
    for number, task in enumerate(tasks, 1):
        (tmp_path / f"{number}.safetensors").write_bytes(task.file)
    rows = [f"{text},{LABELS[tasks[0].logits(text).argmax()]}" for text in TEXTS]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows, ""]))
    return tmp_path


def apply(server, folder, name, live, gate, *options):
    file = folder / "tasks.toml"
    versions = 'versions = { 1 = "1.safetensors", 2 = "2.safetensors" }'
    file.write_text(f"[tasks.{name}]\n{versions}\naliases.live = {live}\n{gate}\n")
    return run_onebert("apply", "-f", file, *options, url=server.url)


def test_a_gate_is_set_refuses_with_its_rows_changes_and_goes(server, place):
    gate = 'gate = { data = "rows.csv", min = { accuracy = 0.9 } }'
    done = apply(server, place, "gated", 1, gate)
    assert (done.returncode, done.stderr) == (0, "")
    assert "+ gate       min.accuracy 0.9, rows sha256:" in done.stdout
    refused = apply(server, place, "gated", 2, gate + "\nkept = false")
    assert refused.returncode == 1
    assert "\ngated, live\ncheck " in refused.stdout
    assert refused.stderr.startswith("error: gated, live: gated@2 does not pass its gate: min.accuracy is ")
    assert "row 1" in refused.stdout
    plan = apply(server, place, "gated", 2, gate, "--dry-run").stdout
    last = "if its gate passes it, which refused the last move: gated@2 does not pass its gate: min.accuracy is "
    assert f"~ live  1 → 2, {last}" in plan
    with Client(server.url) as client:
        assert client.task("gated").aliases == {"live": 1}
    lower = 'gate = { data = "rows.csv", min = { accuracy = 0.0 } }'
    done = apply(server, place, "gated", 2, lower)
    assert done.returncode == 0, done.stderr
    assert re.search("~ gate  min.accuracy 0.9, rows (sha256:.+…) → min.accuracy 0, rows \\1\n", done.stdout)
    assert f"~ live  1 → 2, {last}" in done.stdout
    assert "which refused" not in apply(server, place, "gated", 1, lower, "--dry-run").stdout
    done = apply(server, place, "gated", 2, "gate = false")
    assert "- gate  min.accuracy 0, rows sha256:" in done.stdout
    assert apply(server, place, "gated", 2, "gate = false", "--dry-run").returncode == 0


def test_a_gate_and_diff_say_that_a_version_was_trained_on_their_rows(server, place):
    fingerprint = fingerprint_of(TEXTS[:2], spec().digest)
    task = Task(seed=21, labels=LABELS, training={"fingerprint": fingerprint})
    (place / "2.safetensors").write_bytes(task.file)
    gate = 'gate = { data = "rows.csv", min = { accuracy = 0.9 } }'
    apply(server, place, "seen", 1, gate)
    refused = apply(server, place, "seen", 2, gate)
    note = "2 of 6 rows have texts that the version was trained on: they are not held out"
    assert f"note: {note}" in " ".join(refused.stdout.split())
    command = ("diff", "seen@1", "seen@2", "--data", place / "rows.csv", "--json")
    record = json.loads(run_onebert(*command, url=server.url).stdout)
    assert record["trained_on"] == {"seen@1": 0, "seen@2": 2}
    assert record["notes"] == [f"seen@2: {note}, and scores on them are too high"]


@pytest.mark.parametrize("live", ["2", "{ split = { 1 = 50, 2 = 50 } }"])
def test_a_version_of_a_new_task_that_its_gate_refuses_is_not_live_and_no_other_is(server, place, live):
    name = f"unborn-{len(live)}"
    refused = apply(server, place, name, live, 'gate = { data = "rows.csv", min = { accuracy = 0.9 } }')
    assert (refused.returncode, refused.stdout.splitlines()[-1]) == (1, f"3 of 4 done; stopped at: {name}")
    assert refused.stderr.startswith(f"error: {name}, live: {name}@2 does not pass its gate: min.accuracy is ")
    with Client(server.url) as client:
        facts = client.task(name)
    assert (facts.aliases, len(facts.versions)) == ({}, 2)


def test_a_text_that_must_have_a_label_which_the_task_lacks_is_refused(server, place):
    gate = 'gate = { must = [{ text = "late parcel", label = "complaints" }] }'
    done = apply(server, place, "musts", 1, gate)
    assert (done.returncode, done.stdout) == (1, "")
    assert "tasks.musts.gate: must has the label complaints, which the task lacks; is complaint meant?" in done.stderr
    assert apply(server, place, "musts", 1, gate.replace("complaints", "complaint")).returncode == 0


def test_other_rows_are_a_difference(server, place):
    gate = 'gate = { data = "rows.csv", min = { accuracy = 0.0 } }'
    apply(server, place, "rows", 1, gate)
    assert apply(server, place, "rows", 1, gate, "--dry-run").returncode == 0
    with (place / "rows.csv").open("a") as rows:
        rows.write("one more,praise\n")
    out = apply(server, place, "rows", 1, gate, "--dry-run").stdout
    before, after = re.search("~ gate  min.accuracy 0, rows (.+) → min.accuracy 0, rows (.+)\n", out).groups()
    assert before != after


WRONG = {
    "no rows": ("min.accuracy = 0.5", "tasks.tone.gate: min, max and slices are about rows: name them with data"),
    "misspelled": (
        'min.acuracy = 0.5\ndata = "rows.csv"',
        "tasks.tone.gate.min.acuracy: there is no such key; is accuracy meant?",
    ),
    "nothing": ("", "tasks.tone.gate: a gate has min, max, slices or must"),
    "rows elsewhere": ('min.accuracy = 0.5\ndata = "../rows.csv"', "tasks.tone.gate.data: ../rows.csv is outside"),
    "rows as a number": ("min.accuracy = 0.5\ndata = 3", "tasks.tone.gate.data: must be a text"),
}


@pytest.mark.parametrize(("gate", "error"), WRONG.values(), ids=WRONG)
def test_a_wrong_gate_is_refused_with_the_path_of_its_key(place, gate, error):
    file = place / "tasks.toml"
    file.write_text(f"[tasks.tone.gate]\n{gate}\n")
    assert read_form(file)[1][0].startswith(error)


def test_rows_that_cannot_be_read_change_nothing(server, place):
    (place / "rows.csv").write_text("text,label\na,unknown label\n")
    done = apply(server, place, "unread", 1, 'gate = { data = "rows.csv", min = { accuracy = 0.5 } }')
    assert done.returncode == 1
    assert done.stderr.startswith("error: tasks.toml: tasks.unread.gate: ")
    with Client(server.url) as client:
        assert "unread" not in {task.name for task in client.tasks()}
