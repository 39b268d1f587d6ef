"""A tiny random base and small data sets that it can learn: whole texts, tagged words, answers in a context."""

from dataclasses import replace

import pytest

from bases import tiny_base
from onebert_encoder.base.base import load_base
from onebert_training.data.dataset import load_dataset
from trainings import asked, tagged, write_splits, write_tone


@pytest.fixture(scope="session")
def base():
    return load_base(str(tiny_base("bert")))


@pytest.fixture(scope="session")
def base_without_dropout(base):
    config = replace(base.config, hidden_dropout=0.0, attention_dropout=0.0)
    return replace(base, config=config)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_tone(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def data(folder):
    return load_dataset(str(folder))


@pytest.fixture(scope="session")
def tags(tmp_path_factory):
    return load_dataset(str(write_splits(tmp_path_factory.mktemp("tags"), tagged)))


@pytest.fixture(scope="session")
def questions(tmp_path_factory):
    return load_dataset(str(write_splits(tmp_path_factory.mktemp("questions"), asked)))
