"""The script that trains beside others gives every side the same rows: so many of each label, others for each seed."""

import json
import runpy
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "training" / "beside.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "moods"
    folder.mkdir()
    for split, count in (("train", 90), ("test", 12)):
        rows = [{"text": f"{split} {i}", "label": ("bad", "good", "so so")[i % 3]} for i in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.parent


def rows(folder, split):
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def test_few_rows_are_drawn_evenly_and_anew_for_each_seed(script, data, tmp_path):
    drawn = []
    for seed in (0, 1, 0):
        folder = script["rows_of"](script["Cell"]("moods", "onebert", seed, 8), data, tmp_path)
        assert sorted(path.name for path in folder.iterdir()) == ["labels.json", "test.jsonl", "train.jsonl"]
        drawn.append(rows(folder, "train"))
        assert Counter(row["label"] for row in drawn[-1]) == {"bad": 8, "good": 8, "so so": 8}
        assert len(rows(folder, "test")) == 12
        read = script["unvalidated"](folder)
        assert {name: len(split) for name, split in read.splits.items()} == {"train": 24, "test": 12}
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]


def test_cells_of_few_rows_are_kept_apart_from_those_of_all(script, tmp_path):
    cells = [script["Cell"]("moods", "linear", 0, count) for count in (None, 8)]
    for cell, accuracy in zip(cells, (0.9, 0.5), strict=True):
        script["keep"](tmp_path, cell, {"metric": "accuracy", "scores": {"accuracy": accuracy}})
    old = {"set": "moods", "side": "setfit", "seed": 1, "metric": "accuracy", "scores": {"accuracy": 0.7}}
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write(json.dumps(old) + "\n")  # as it was written before there were few rows
    done = script["finished"](tmp_path)
    assert {cell: found["scores"]["accuracy"] for cell, found in done.items()} == {
        cells[0]: 0.9,
        cells[1]: 0.5,
        script["Cell"]("moods", "setfit", 1): 0.7,
    }
    lines = script["table"](cells, ["linear"], done).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["moods", "moods-8", "mean of 1, 8 rows"]
    assert "50.0" in lines[3]


def test_the_table_compares_means_over_the_seeds_that_each_side_has(script):
    cell, accuracy = script["Cell"], {("a", "onebert", 0): 0.9, ("a", "onebert", 1): 0.8, ("a", "linear", 0): 0.86}
    accuracy |= {("b", "onebert", 0): 0.5, ("b", "onebert", 1): 0.5}
    done = {
        cell(*key, per_class=8): {"metric": "accuracy", "scores": {"accuracy": value}}
        for key, value in accuracy.items()
    }
    asked = [cell(name, side, seed, 8) for name in "ab" for side in ("onebert", "linear") for seed in (0, 1)]
    lines = [
        [field.strip() for field in line.strip("|").split("|")]
        for line in script["table"](asked, ["onebert", "linear"], done).splitlines()[2:]
    ]
    assert lines == [
        ["a-8", "accuracy", "85.0 ± 7.1", "86.0 (1)", "-1.0"],
        ["b-8", "accuracy", "50.0 ± 0.0", "–", "–"],
        ["mean of 1, 8 rows", "", "85.0", "86.0", "-1.0"],
    ]
