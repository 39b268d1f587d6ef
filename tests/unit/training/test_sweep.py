"""`onebert sweep` as a user meets it: names, files, runs that are killed and continued, results, the best delta."""

import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from bases import tiny_base
from onebert_encoder.base.base import load_base
from onebert_store.command.process import ONEBERT
from onebert_store.file.format import load
from onebert_training.data.options import DataOptions
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.fit.loop import train
from onebert_training.fit.settings import Settings
from onebert_training.report.records import load_records
from onebert_training.report.tables import results_markdown
from onebert_training.sweep.recipe import RunRequest
from onebert_training.sweep.work import Outcome, RunsFolder, make_job_sets, make_runs, name_job

pytestmark = pytest.mark.slow

# Rates that a random base of 32 units learns by; 1e30 does not stay finite.
RECIPE = """
name = "small"
paper = "none"
description = "two data sets"
[settings]
epochs = 4
batch_size = 12
evals_per_epoch = 1
patience = 0
[grid]
data = ["tone", "mood"]
seed = [0, 1]
[[group]]
method = ["bitfit", "layernorm"]
learning_rate = [0.01, 0.05]
[[group]]
method = "full"
learning_rate = 1e-3
skip = ["mood"]
[[group]]
method = "full"
seed = 7
learning_rate = 1e30
skip = ["mood"]
"""
FEW = """
name = "few"
paper = "none"
description = "four runs that take a while"
[settings]
epochs = 16
evals_per_epoch = 1
patience = 0
learning_rate = 0.02
[grid]
method = ["bitfit", "layernorm"]
data = ["tone"]
seed = [0, 1]
"""
# The fields of a record that may differ between two attempts of the same run.
INCIDENTAL = {"seconds", "tokens_per_second", "resumed_at"}


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory, folder):
    """The data sets `tone` and `mood`; the second has some of its labels wrong."""
    root = tmp_path_factory.mktemp("sets")
    for name in ("tone", "mood"):
        shutil.copytree(folder, root / name)
    for file in (root / "mood").iterdir():
        rows = file.read_text().splitlines()
        rows[1::5] = [row.replace("praise", "complaint") for row in rows[1::5]]
        file.write_text("\n".join(rows) + "\n")
    return root


def sweep_arguments(recipe: Path, data: Path, out: Path, *more):
    return ["sweep", recipe, "--data", data, "--out", out, "--base", tiny_base(), "--device", "cpu", *more]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def records_in(out: Path) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}


def contents(out: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory, data_folder):
    """A finished sweep: its command, its folder, its JSON."""
    root = tmp_path_factory.mktemp("swept")
    arguments = sweep_arguments(write(root / "small.toml", RECIPE), data_folder, root / "runs", "--together", 3)
    done = subprocess.run([*ONEBERT, *map(str, arguments), "--json"], capture_output=True, text=True, check=True)
    return arguments, root / "runs", json.loads(done.stdout), done.stderr


def test_every_run_has_a_record_and_what_can_be_served_a_delta(swept):
    _, out, printed, progress = swept
    records = records_in(out)
    assert len(records) == printed["runs"] == 2 * 2 * 4 + 2
    assert {record["experiment"] for record in records.values()} == {"small"}
    for name, record in records.items():
        delta = out / f"{name}.safetensors"
        assert delta.is_file() == (record["method"] != "full")
        if delta.is_file():
            assert (record["digest"], record["file_bytes"]) == (load(delta).digest, delta.stat().st_size)
            assert record["out"] == delta.name
        else:
            assert (record["digest"], record["file_bytes"], record["out"]) == (None, None, None)
    (failed,) = printed["failed"].items()
    assert failed[0].startswith("tone-full-b12-lr1e+30-s7-")
    assert "no longer a number" in failed[1]
    lines = [line.split(" ")[0] for line in progress.splitlines() if "/19 " in line]
    assert lines == [f"{i}/19" for i in range(1, 20)]
    assert list((out / "checkpoints").iterdir()) == []


def test_results_are_the_statistics_of_the_records_at_the_best_settings(swept, onebert):
    arguments, out, printed, _ = swept
    records, table, markdown = records_in(out).values(), onebert(*arguments)[1], results_markdown(load_records([out]))
    shown = {(cell["data"], cell["method"]): cell for cell in printed["results"]}
    assert set(shown) == {(record["data"]["name"], record["method"]) for record in records}
    for at, cell in shown.items():
        runs = [record for record in records if (record["data"]["name"], record["method"]) == at]
        rate = cell["settings"]["learning_rate"]
        scores = [run["test"]["accuracy"] for run in runs if run["learning_rate"] == rate]
        assert (len(scores), cell["seeds"], cell["split"]) == (2, 2, "test")
        assert (cell["mean"], cell["std"]) == pytest.approx((fmean(scores), stdev(scores)))
        text = f"{100 * fmean(scores):.1f} ± {100 * stdev(scores):.1f}"
        assert text in table
        assert text in markdown


def test_the_delta_to_publish_is_one_of_the_runs_that_are_nearly_the_best(swept):
    _, out, printed, _ = swept
    servable = [record for record in records_in(out).values() if record["out"]]
    assert {trial["data"] for trial in printed["publish"]} == {"tone", "mood"}
    for trial in printed["publish"]:
        runs = [record for record in servable if record["data"]["name"] == trial["data"]]
        chosen = next(run for run in runs if Path(trial["file"]).name == run["out"])
        best = max(run["validation"]["accuracy"] for run in runs)
        assert best - 0.2 < trial["validation"] == chosen["validation"]["accuracy"]
        assert load(Path(trial["file"])).digest == chosen["digest"]


def test_only_runs_what_it_names_and_alone_as_together(swept, onebert, tmp_path, data_folder):
    arguments, out, _, _ = swept
    only = sweep_arguments(arguments[1], data_folder, tmp_path / "runs", "--together", 1)
    status, printed, progress = onebert(*only, "--only", "mood", "--only", "layernorm")
    assert status == 0, progress
    assert "publish: mood: layernorm, accuracy" in printed
    alone, together = records_in(tmp_path / "runs"), records_in(out)
    assert {(run["data"]["name"], run["method"]) for run in alone.values()} == {("mood", "layernorm")}
    assert len(alone) == 4
    for name, run in alone.items():
        # Another batch rounds otherwise; sixteen steps do not carry that far.
        for here, there in zip(run["history"], together[name]["history"], strict=True):
            assert here["validation_loss"] == pytest.approx(there["validation_loss"], rel=1e-3)
    # One of the four is taken away, as if the sweep had been stopped before it.
    lost, *_ = alone
    (tmp_path / "runs" / f"{lost}.json").unlink()
    reported = onebert("report", tmp_path / "runs", "--markdown")
    assert (reported[0], reported[2]) == (
        0, "warning: 1 of the 4 runs of small is missing: failed, or not yet trained by `onebert sweep`\n"
    )  # fmt: skip
    # Of the whole recipe only the run that fails is missing.
    assert onebert("report", out, "--markdown")[2].startswith("warning: 1 of the 19 runs of small is missing: failed")
    status, printed, progress = onebert(*only, "--only", "nothing")
    assert (status, printed) == (1, "")
    assert progress == "error: small has neither data nor a method named nothing\n"


def test_a_sweep_killed_in_the_middle_goes_on(onebert, tmp_path, data_folder):
    recipe = write(tmp_path / "few.toml", FEW)
    killed = sweep_arguments(recipe, data_folder, tmp_path / "killed", "--together", 1)
    with subprocess.Popen([*ONEBERT, *map(str, killed)], stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("1/4 "):
                # The next one is under way as soon as it has a checkpoint; one being written has a name with a dot.
                while not list((tmp_path / "killed/checkpoints").glob("[!.]*")) and process.poll() is None:
                    os.sched_yield()
                process.kill()
    assert process.returncode == -signal.SIGKILL
    before = contents(tmp_path / "killed")
    finished = sum(name.endswith(".json") for name in before)
    assert 1 <= finished < 4

    status, _, progress = onebert(*killed)
    assert status == 0, progress
    assert f"few: 4 runs, {finished} of them finished before" in progress
    assert before.items() <= contents(tmp_path / "killed").items()
    assert onebert(*sweep_arguments(recipe, data_folder, tmp_path / "whole", "--together", 1))[0] == 0
    records, whole = records_in(tmp_path / "killed"), records_in(tmp_path / "whole")
    assert any(record["resumed_at"] > 0 for record in records.values())
    assert [strip(record) for record in records.values()] == [strip(record) for record in whole.values()]
    assert records.keys() == whole.keys()


def strip(record: dict) -> dict:
    return {name: value for name, value in record.items() if name not in INCIDENTAL}


REFUSED = {
    "no such data": ("epochs = 1", ["tone", "gone"], "gone: there is no data at"),
    "one label": ("epochs = 1", ["tone", "one"], "one: all training rows have the same"),
    "not of the task": ('metric = "pearson"', ["tone"], "tone: the metrics of this task are"),
    "not for the base": ('method = "spafit:1-2-I"', ["tone"], "needs 4 layers or more"),
    "pooling": ('pooling = "none"', ["tone"], "tone: the pooling of a single_label task here is"),
}


@pytest.mark.parametrize(("setting", "data", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_run_is_one_line_before_anything_is_trained(onebert, tmp_path, folder, setting, data, message):
    shutil.copytree(folder, tmp_path / "data/tone")
    (tmp_path / "data/one").mkdir()
    (tmp_path / "data/one/train.csv").write_text("text,label\n" + "\n".join(f"word {i},same" for i in range(30)) + "\n")
    head = 'name = "small"\npaper = "none"\ndescription = ""\n'
    recipe = write(tmp_path / "small.toml", f"{head}[settings]\n{setting}\n[grid]\ndata = {json.dumps(data)}\n")
    status, printed, progress = onebert(*sweep_arguments(recipe, tmp_path / "data", tmp_path / "runs"))
    assert (status, printed) == (1, "")
    assert progress.startswith("error: ")
    assert message in progress
    assert progress.count("\n") == 1
    assert not (tmp_path / "runs").exists()


SETTINGS = Settings(method="bitfit", seed=3)
REQUEST = RunRequest("small", "tone", "sets/tone", SETTINGS, DataOptions())


def test_a_head_alone_learns_from_the_rows_of_every_other_method_of_a_recipe(base, folder, tmp_path):
    """Of one file a share is held out; `onebert train` would fit it on all rows, and score it in folds."""
    shutil.copy(folder / "train.csv", tmp_path / "train.csv")
    reading = DataOptions(validation_share=0.25)
    request = RunRequest("s", "tone", str(tmp_path), replace(SETTINGS, method="head"), reading)
    (job_set,) = make_job_sets([request], base.spec, "float32")
    (run,) = make_runs(base, job_set)
    result = train(run)
    assert result.folds == 0
    examples = job_set.dataset.splits["validation"]
    logits = predict_delta(base, result.delta, tokenize(base, result.delta.manifest, examples.texts))
    assert result.validation == run.objective.evaluate(examples, [], logits)


def test_failed_runs_are_not_tried_again(data, tmp_path):
    spec = load_base(str(tiny_base())).spec
    jobs = [
        name_job(replace(REQUEST, reading=DataOptions(train_rows=rows)), data, spec, "float32") for rows in (10, 20)
    ]
    folder = RunsFolder(tmp_path / "runs")
    for job in jobs:
        folder.checkpoint_file(job.name).write_bytes(b"half")
    folder.keep(Outcome(jobs[0].name, error="not a number"))
    assert [folder.is_pending(job) for job in jobs] == [False, True]
    assert folder.error(jobs[0].name) == "not a number"
    assert [folder.checkpoint_file(job.name).exists() for job in jobs] == [False, True]
