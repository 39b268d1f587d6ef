"""The scores that a version records are those of what was decided last."""

import json
from pathlib import Path

from bases import tiny_base
from ended import recorded, succeeded
from onebert_store.file.format import load
from trainings import THINGS

BASE = str(tiny_base())
MACHINE = ("--base", BASE, "--device", "cpu")
WORDS = {"spam": "bad", "ham": "good"}


def rows_of(count, start):
    labels = [("spam", "ham")[i % 2] for i in range(count)]
    return [
        {"text": f"the {THINGS[i % 6]} was very {WORDS[label]} and late {start + i}", "label": [label, "late"]}
        for i, label in enumerate(labels)
    ]


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_scores_of_the_file_are_those_of_its_decision_or_gone(onebert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "folder"
    for split, count, start in (("train", 60, 0), ("validation", 40, 1000), ("test", 40, 2000)):
        write(folder / f"{split}.jsonl", rows_of(count, start))
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
