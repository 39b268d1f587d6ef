"""The fields of the options give the command's options and the recipe's fields."""

import re
from dataclasses import fields

import pytest

from onebert_store.errors import InvalidSettings
from onebert_training.data.options import DataOptions
from onebert_training.fit.settings import Settings


def test_train_takes_every_field(onebert, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, printed, _ = onebert("train", "--help")
    assert status == 0
    offered = set(re.findall(r"--[a-z-]+", printed))
    fields_there = {field.name.replace("_", "-") for group in (DataOptions, Settings) for field in fields(group)}
    assert {f"--{name.replace('learning-rate', 'lr')}" for name in fields_there} <= offered


def test_help_fits_80_columns_in_panels(onebert, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, printed, _ = onebert("train", "--help")
    assert max(map(len, printed.splitlines())) <= 80
    panels = re.findall(r"╭─ (.*?) ─+╮", printed)
    assert panels == ["Options", "Data", "What is trained", "How long and how fast", "Machine and output"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "--epochs"),
        (["--train-rows", "1"], "--train-rows"),
        (["--seed", str(2**31)], "--seed"),
        (["--task-type", "guess"], "--task-type"),
        (["--head-lr", "equal"], "a number, or the word same"),
    ],
)
def test_bounds_are_those_of_the_fields(onebert, arguments, message):
    status, printed, error = onebert("train", "--task", "x", "--data", "y", *arguments)
    assert (status, printed) == (2, "")
    assert message in error


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_learning_rate_is_a_number_above_zero(rate):
    with pytest.raises(InvalidSettings, match=r"\(--lr\) is a number above 0"):
        Settings(learning_rate=rate)
    with pytest.raises(InvalidSettings, match=r"\(--head-lr\) is a number above 0"):
        Settings(head_learning_rate=rate)
