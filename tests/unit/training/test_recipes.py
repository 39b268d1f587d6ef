"""The fields of options are a command's and a recipe's; the papers' recipes expand to the papers' numbers of runs."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from onebert_store.errors import InvalidMethod, InvalidSettings
from onebert_training.data.options import DataOptions
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.methods.methods import parse_method
from onebert_training.sweep.recipe import load_recipe

RECIPES = sorted((Path(__file__).parents[3] / "training/recipes").glob("*.toml"))

SMALL = """
name = "small"
description = "two methods"
[settings]
epochs = 2
[grid]
data = ["a", "b"]
seed = [0, 1, 2]
[[group]]
method = "frozen"
skip = ["b"]
[[group]]
method = ["bitfit", "layernorm"]
learning_rate = [1e-4, 1e-3]
[task.b]
metric = "f1"
learning_rate = 5e-4
train_rows = ["all", 100]
"""


def write(tmp_path, text):
    path = tmp_path / "small.toml"
    path.write_text(text)
    return path


def expand(name):
    return load_recipe(next(path for path in RECIPES if path.stem == name)).runs()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_named_like_its_file_and_has_methods_that_exist(path):
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.bases
    assert recipe.paper or path.stem == "demo"
    assert all(parse_method(run.settings.method) for run in recipe.runs())
    assert f"`{recipe.name}`" in (path.parents[2] / "docs/experiments.md").read_text()


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem[0].isdigit()], ids=lambda path: path.stem)
def test_a_paper_has_one_rate_for_head_and_rest_and_measures_steps(path, base, data):
    runs = load_recipe(path).runs()
    assert {run.settings.head_learning_rate for run in runs} == {"same"}
    assert {(run.settings.averaging, run.settings.keep) for run in runs} == {(0, "best")}
    settings = replace(runs[0].settings, method="full", metric=None, pooling="cls")
    run = Run(TaskInputs(base, data, 40), settings, "tone")
    assert all(head == rest > 0 for head, rest in map(run.learning_rates_at, range(run.steps)))


@pytest.mark.parametrize("name", ["study", "demo"])
def test_recipes_of_no_paper_take_the_defaults(name):
    assert {run.settings.head_learning_rate for run in expand(name)} == {None}


def test_later_tables_win_and_lists_multiply(tmp_path):
    runs = load_recipe(write(tmp_path, SMALL)).runs(Path("/data"))
    on_a = [run for run in runs if run.data == "a"]
    on_b = [run for run in runs if run.data == "b"]
    assert len(on_a) == 3 + 2 * 2 * 3
    assert len(on_b) == 2 * 3 * 2
    assert {run.settings.learning_rate for run in on_b} == {5e-4}
    assert {run.reading.train_rows for run in on_b} == {None, 100}
    assert {run.source for run in runs} == {"/data/a", "/data/b"}
    assert {run.settings.epochs for run in runs} == {2}


def test_only_some_runs(tmp_path):
    recipe = load_recipe(write(tmp_path, SMALL))
    assert len(recipe.runs(only=["a", "bitfit"])) == 2 * 3
    assert len(recipe.runs(only=["bitfit", "layernorm"])) == 2 * (2 * 3 + 2 * 3)
    with pytest.raises(InvalidSettings, match="neither data nor a method named c"):
        recipe.runs(only=["a", "c"])
    with pytest.raises(InvalidSettings, match="nothing is left"):
        recipe.runs(only=["b", "frozen"])


@pytest.mark.parametrize(
    ("old", "new", "error", "says"),
    [
        ("epochs = 2", "epoch = 2", InvalidSettings, "settings: there is no setting epoch;"),
        ("epochs = 2", "epochs = 2.5", InvalidSettings, "epochs: must be a whole number"),
        ("epochs = 2", "epochs = [2]", InvalidSettings, "epochs is a list"),
        ("epochs = 2", 'pooling = "max"', InvalidSettings, "pooling: must be"),
        ("epochs = 2", "learning_rate = nan", InvalidSettings, "settings.learning_rate"),
        ("epochs = 2", 'head_learning_rate = "equal"', InvalidSettings, "head_learning_rate"),
        ("seed = [0, 1, 2]", "seed = []", InvalidSettings, "grid.seed"),
        ("seed = [0, 1, 2]", "seed = [0, 0]", InvalidSettings, "the same run"),
        ("[task.b]", "[task.bee]", InvalidSettings, "small.toml: no run has the data bee"),
        ('["bitfit", "layernorm"]', '"bitfat"', InvalidMethod, "no method 'bitfat'; is bitfit meant? Methods are"),
        ('metric = "f1"', 'data = "a"', InvalidSettings, "a task has no data of its own"),
        ('description = "two methods"', "", InvalidSettings, "description: Field required"),
        ("description", 'papers = "none"\ndescription', InvalidSettings, "small.toml: papers: Extra inputs"),
        ('data = ["a", "b"]', "", InvalidSettings, "nothing is left to run"),
        ("[grid]", "[grid", InvalidSettings, "small.toml is not TOML"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, old, new, error, says):
    assert old in SMALL
    with pytest.raises(error) as caught:
        load_recipe(write(tmp_path, SMALL.replace(old, new, 1)))
    assert says in caught.value.detail
    assert "\n" not in caught.value.detail


def test_train_takes_every_field_that_is_not_for_recipes_alone(onebert, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, printed, _ = onebert("train", "--help-all")
    assert status == 0
    offered = set(re.findall(r"--[a-z-]+", printed))
    every = {f"--{field.name.replace('_', '-')}" for group in (DataOptions, Settings) for field in fields(group)}
    keys = {"validation-rows", "head-learning-rate", "averaging", "start", "evals-per-epoch", "keep", "measure-train"}
    assert every - offered == {f"--{name}" for name in keys}


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_learning_rate_is_a_number_above_zero(rate):
    with pytest.raises(InvalidSettings, match="--learning-rate is a number above 0"):
        Settings(learning_rate=rate)
    with pytest.raises(InvalidSettings, match="head_learning_rate is a number above 0"):
        Settings(head_learning_rate=rate)
