"""The fields of options are a command's and a recipe's; the papers' recipes expand to the papers' numbers of runs."""

import re
from collections import Counter
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


def test_table_of_what_to_freeze():
    runs = expand("000-table-1")
    # Rates times rounds: ten on CoLA and RTE, five on SST-2 and QNLI, which the last two methods leave out.
    often = {"full": 1 * 30, "bitfit": 3 * 30, "layernorm": 3 * 30, "random:0.1%": 3 * 25, "init-bias": 4 * 25}
    assert Counter(run.settings.method for run in runs) == often
    shapes = {(run.settings.batch_size, run.settings.epochs, run.settings.evals_per_epoch) for run in runs}
    assert shapes == {(8, 20, 10)}
    assert {run.reading.validation_share for run in runs} == {0.2}


@pytest.mark.parametrize(
    ("name", "sizes"), [("000-table-2", {5000, 2500, 1000, 500, 100}), ("000-table-3", {2000, 1000, 500, 200, 100})]
)
def test_sizes_of_the_low_data_regime(name, sizes):
    runs = expand(name)
    assert {run.reading.train_rows for run in runs} == {None, *sizes}
    assert len(runs) == 7 * 6 * 10  # rows of the table, columns, rounds


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


def test_columns_and_task_type_of_data_can_be_named(tmp_path):
    more = 'text = "body"\nlabel = "kind"\ntask_type = "regression"\ndrop_unlabeled = true\nvalidation_rows = 50\n'
    runs = load_recipe(write(tmp_path, SMALL + more)).runs()
    assert {run.reading for run in runs if run.data == "a"} == {DataOptions()}
    asked = DataOptions(
        text="body", label="kind", task_type="regression", drop_unlabeled=True, validation_rows=50, train_rows=100
    )
    assert {run.reading for run in runs if run.data == "b"} == {asked, replace(asked, train_rows=None)}
    with pytest.raises(InvalidSettings, match="task_type: must be '"):
        load_recipe(write(tmp_path, SMALL + 'task_type = "guess"\n'))


def test_only_some_runs(tmp_path):
    recipe = load_recipe(write(tmp_path, SMALL))
    assert len(recipe.runs(only=["a", "bitfit"])) == 2 * 3
    assert len(recipe.runs(only=["bitfit", "layernorm"])) == 2 * (2 * 3 + 2 * 3)
    with pytest.raises(InvalidSettings, match="neither data nor a method named c"):
        recipe.runs(only=["a", "c"])
    with pytest.raises(InvalidSettings, match="nothing is left"):
        recipe.runs(only=["b", "frozen"])


def test_paths_and_hub_names_are_taken_as_they_are(tmp_path):
    text = SMALL.replace('["a", "b"]', '["hf:glue/rte", "/elsewhere/x", "b"]')
    sources = {run.source for run in load_recipe(write(tmp_path, text)).runs(Path("/data"))}
    assert sources == {"hf:glue/rte", "/elsewhere/x", "/data/b"}


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


def test_help_fits_80_columns_in_panels(onebert, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, printed, _ = onebert("train", "--help-all")
    assert max(map(len, printed.splitlines())) <= 80
    panels = re.findall(r"╭─ (.*?) ─+╮", printed)
    trained = ["What is trained", "How long and how fast", "Machine and output", "As an earlier version"]
    assert panels == ["Options", "Data", *trained, "Server"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "--epochs"),
        (["--train-rows", "1"], "--train-rows"),
        (["--seed", str(2**31)], "--seed"),
        (["--task-type", "guess"], "--task-type"),
    ],
)
def test_bounds_are_those_of_the_fields(onebert, arguments, message):
    status, printed, error = onebert("train", "--task", "x", "--data", "y", *arguments)
    assert (status, printed) == (2, "")
    assert message in error


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_learning_rate_is_a_number_above_zero(rate):
    with pytest.raises(InvalidSettings, match="--learning-rate is a number above 0"):
        Settings(learning_rate=rate)
    with pytest.raises(InvalidSettings, match="head_learning_rate is a number above 0"):
        Settings(head_learning_rate=rate)
