"""The demo's data sets keep their promises: sizes, balance, known labels, and no text twice."""

import csv
import json
import re
from collections import Counter
from importlib.resources import files

import pytest

DATA = files("onebert_demo") / "data"
COLUMNS = {
    "support-routing": ["text", "label"],
    "review-tone": ["text", "label"],
    "same-question": ["text", "text_pair", "label"],
}
LEAST = {"train": 180, "validation": 40, "test": 70}


def rows(task: str, split: str) -> list[dict[str, str]]:
    text = (DATA / task / f"{split}.csv").read_text(encoding="utf-8")
    reader = csv.DictReader(text.splitlines(), strict=True)
    assert reader.fieldnames == COLUMNS[task]
    return list(reader)


def labels(task: str) -> list[str]:
    return json.loads((DATA / task / "labels.json").read_text(encoding="utf-8"))["labels"]


def normalized(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def questions(task: str) -> list[frozenset[str]]:
    """Every example of a task, all splits together, blind to case, punctuation and the order in a pair."""
    texts = COLUMNS[task][:-1]
    return [frozenset(normalized(row[name]) for name in texts) for split in LEAST for row in rows(task, split)]


@pytest.mark.parametrize("split", LEAST)
@pytest.mark.parametrize("task", COLUMNS)
def test_splits_are_balanced_and_as_large_as_promised(task: str, split: str) -> None:
    examples = rows(task, split)
    assert len(examples) >= LEAST[split]
    counts = Counter(int(row["label"]) for row in examples)
    assert sorted(counts) == list(range(len(labels(task))))
    assert len(set(counts.values())) == 1
    for text in (row[name] for row in examples for name in COLUMNS[task][:-1]):
        assert len(text.split()) >= 3
        assert text == text.strip()


@pytest.mark.parametrize("task", COLUMNS)
def test_no_example_occurs_twice_within_or_across_splits(task: str) -> None:
    assert [example for example, count in Counter(questions(task)).items() if count > 1] == []


def test_no_question_is_part_of_two_pairs_nor_paired_with_itself() -> None:
    pairs = questions("same-question")
    assert all(len(pair) == 2 for pair in pairs)
    assert [text for text, count in Counter(text for pair in pairs for text in pair).items() if count > 1] == []
