"""What a user decided survives the next training: targets are met anew, or the version says which ones it lacks."""

import json
from pathlib import Path

import pytest

from bases import tiny_base
from ended import recorded, refused, succeeded
from onebert_server.client import Client
from onebert_store.file.format import load
from servers import Server
from trainings import THINGS

BASE = str(tiny_base())
MACHINE = ("--base", BASE, "--device", "cpu")
WORDS = {"spam": "bad", "ham": "good"}
TARGETS = ("--target", "precision=0.6", "--target", "coverage=0.5")


def rows_of(count, start=0, several=False):
    labels = [("spam", "ham")[i % 2] for i in range(count)]
    return [
        {
            "text": f"the {THINGS[i % 6]} was very {WORDS[label]} and late {start + i}",
            "label": [label, "late"] if several else label,
        }
        for i, label in enumerate(labels)
    ]


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("repeated"), base=BASE) as running:
        yield running


@pytest.fixture
def calibrated(onebert, tmp_path, monkeypatch):
    """Trains a version on so many rows, and calibrates it on others."""
    monkeypatch.chdir(tmp_path)

    def make(count):
        data = write(tmp_path / "rows.jsonl", rows_of(count))
        others = write(tmp_path / "others.jsonl", rows_of(200, start=10_000))
        succeeded(onebert("train", "--task", "mail", "--data", data, "--method", "head", *MACHINE))
        command = ("calibrate", "mail.safetensors", "--data", others, *TARGETS, "--positive", "spam", *MACHINE)
        succeeded(onebert(*command, "--out", "mail.safetensors"))
        return data, others

    return make


def test_a_version_that_lacks_a_target_says_so_everywhere_and_is_not_moved_unless_forced(
    onebert, calibrated, server, monkeypatch
):
    monkeypatch.setenv("ONEBERT_URL", server.url)
    data, others = calibrated(60)
    succeeded(onebert("push", "mail.safetensors"))
    record, error = recorded(onebert("train", "--like", "mail", "--data", data, "--json", *MACHINE))
    why = "no rows were held out"
    command = f"onebert calibrate {record['out']} --data ROWS {' '.join(TARGETS)}"
    assert f"note: not kept of mail@1: precision=0.6 ({why}), coverage=0.5 ({why}); {command}\n" in error
    succeeded(onebert("push", record["out"]))
    lacks = "version 2 does not keep precision=0.6: no rows were held out"
    assert lacks in " ".join(succeeded(onebert("status", "mail"))[0].split())
    # A line a task: its end is elided.
    assert "version 2 does not keep" in succeeded(onebert("status"))[0]
    with Client(server.url) as client:
        assert [status.lacks for status in client.status() if status.name == "mail"] == [
            {"2": ["coverage=0.5", "precision=0.6"]}
        ]
    for command in (("promote", "mail", "2"), ("rollout", "mail", "--split", "1=90,2=10")):
        assert "mail@2 does not keep coverage=0.5, precision=0.6" in refused(onebert(*command))
    printed, _ = succeeded(onebert("promote", "mail", "2", "--force", "--message", "urgent"))
    assert lacks in printed
    succeeded(onebert("promote", "mail", "1"))
    command = ("calibrate", record["out"], "--data", others, *TARGETS, "--out", "third.safetensors", *MACHINE)
    succeeded(onebert(*command))
    succeeded(onebert("push", "third.safetensors", "--task", "mail"))
    succeeded(onebert("promote", "mail", "3"))
    with Client(server.url) as client:
        assert client.status("mail").decision["thresholds"].keys() == {"spam"}


def test_scores_of_the_file_are_those_of_its_decision_or_gone(onebert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "folder"
    for split, count, start in (("train", 60, 0), ("validation", 40, 1000), ("test", 40, 2000)):
        write(folder / f"{split}.jsonl", rows_of(count, start, several=True))
    succeeded(onebert("train", "--task", "mail", "--data", folder, "--method", "head", *MACHINE))
    trained = load(Path("mail.safetensors")).manifest.training
    common = ("calibrate", "mail.safetensors", "--threshold", "spam=0.999999", "--threshold", "ham=0.999999")
    succeeded(onebert(*common, "--data", folder, "--out", "there.safetensors", *MACHINE))
    there = load(Path("there.safetensors")).manifest.training
    for split in ("validation", "test"):
        command = ("evaluate", "there.safetensors", "--data", folder, "--split", split, "--json", *MACHINE)
        assert there[split] == recorded(onebert(*command))[0]["metrics"] != trained[split]
    lone = ("--data", folder / "test.jsonl", "--out", "lone.safetensors")
    succeeded(onebert(*common, *lone, *MACHINE))
    assert load(Path("lone.safetensors")).manifest.training["test"] == there["test"]
    assert "validation" not in load(Path("lone.safetensors")).manifest.training
    succeeded(onebert(*common, "--out", "gone.safetensors"))
    assert not {"validation", "test"} & load(Path("gone.safetensors")).manifest.training.keys()
    # A test split without labels, as benchmarks have, is none.
    write(folder / "test.jsonl", [{"text": row["text"]} for row in rows_of(40, 2000)])
    succeeded(onebert(*common, "--data", folder, "--out", "unlabeled.safetensors", *MACHINE))
    assert {"validation", "test"} & load(Path("unlabeled.safetensors")).manifest.training.keys() == {"validation"}
