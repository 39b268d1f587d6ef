"""A tiny random base and small data sets that it can learn: whole texts, tagged words, answers in a context."""

import json
from dataclasses import replace

import pytest

from bases import tiny_base
from onebert_encoder.base.base import load_base
from onebert_training.data.dataset import load_dataset

THINGS = ("parcel", "order", "invoice", "password", "screen", "refund")
SPLITS = {"train": 48, "validation": 20, "test": 12}


def lines(count, offset=0):
    """Texts of praise and complaint, which differ in one word."""
    words = [("good", "praise"), ("bad", "complaint")]
    for i in range(count):
        word, label = words[(i + offset) % 2]
        yield f"the {THINGS[i % 6]} was very {word} and late {i}", label


def tagged(count, offset=0):
    """Texts whose entities are things of two words, some of several word pieces."""
    for i in range(offset, offset + count):
        words = ["my", THINGS[i % 6], ("stamps", "box", "code")[i % 3], *("was", "very", "late")[: 1 + i % 3]]
        yield {"words": words, "tags": ["O", "B-THING", "I-THING", *["O"] * (len(words) - 3)]}


def asked(count, offset=0):
    """Questions whose answer is a thing somewhere in the context."""
    for i in range(offset, offset + count):
        thing, before = THINGS[i % 6], ("the late ", "my very good ", "")[i % 3]
        context = f"{before}{thing} was broken, thanks"
        answers = {"text": [thing], "answer_start": [len(before)]}
        yield {"question": "what was it?", "context": context, "answers": answers}


def load_written(folder, rows_of):
    for split, count in SPLITS.items():
        rows = rows_of(count, offset=len(split))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_dataset(str(folder))


@pytest.fixture(scope="session")
def base():
    return load_base(str(tiny_base("bert")))


@pytest.fixture(scope="session")
def base_without_dropout(base):
    config = replace(base.config, hidden_dropout=0.0, attention_dropout=0.0)
    return replace(base, config=config)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    for split, count in SPLITS.items():
        rows = [f"{text},{label}" for text, label in lines(count, offset=len(split))]
        (path / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return path


@pytest.fixture(scope="session")
def data(folder):
    return load_dataset(str(folder))


@pytest.fixture(scope="session")
def tags(tmp_path_factory):
    return load_written(tmp_path_factory.mktemp("tags"), tagged)


@pytest.fixture(scope="session")
def questions(tmp_path_factory):
    return load_written(tmp_path_factory.mktemp("questions"), asked)
