"""A tiny random base and a small labeled data set that it can learn."""

import pytest

from bases import tiny_base
from onebert_encoder.base import load_base
from onebert_training.cells import Columns
from onebert_training.data import load_dataset

THINGS = ("parcel", "order", "invoice", "password", "screen", "refund")


def lines(count, offset=0):
    """Praise and complaint, one word apart."""
    words = [("good", "praise"), ("bad", "complaint")]
    for i in range(count):
        word, label = words[(i + offset) % 2]
        yield f"the {THINGS[i % 6]} was very {word} and late {i}", label


@pytest.fixture(scope="session")
def base():
    return load_base(str(tiny_base("bert")))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    for split, count in (("train", 48), ("validation", 20), ("test", 12)):
        rows = [f"{text},{label}" for text, label in lines(count, offset=len(split))]
        (path / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return path


@pytest.fixture(scope="session")
def data(folder):
    return load_dataset(str(folder), Columns())
