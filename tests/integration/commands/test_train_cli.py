"""`onebert train` and `onebert evaluate` as a user meets them: files, JSON, one-line errors, kill -9 and continue.

Every task type and every kind of result goes through both commands once.
"""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
import transformers
from rich.console import Console
from sentence_transformers import SentenceTransformer
from sklearn.metrics import accuracy_score

from bases import tiny_base
from ended import recorded, refused, succeeded
from onebert_store.command import console
from onebert_store.file.format import load
from trainings import THINGS, asked, remembering, tagged, write_splits, write_tone


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tone(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Options of a training whose head starts at nothing."""
    return "--like", remembering(tmp_path_factory.mktemp("like"), start="fresh")


def train_arguments(folder, out, *more):
    return [
        *("train", "--task", "tone", "--data", str(folder), "--base", str(tiny_base()), "--out", str(out)),
        *("--device", "cpu", "--learning-rate", "0.02", "--batch-size", "8", "--epochs", "3", *more),
    ]


def evaluate_arguments(out, data, *more):
    return ["evaluate", out, "--data", data, "--base", tiny_base(), "--device", "cpu", *more]


def head_arguments(folder, out, *more):
    """The exact head takes no option of steps."""
    asked = ("--method", "head", "--base", tiny_base(), "--out", out, "--device", "cpu")
    return ["train", "--task", "tone", "--data", folder, *asked, *more]


def test_train_prints_a_record_that_the_file_and_evaluate_confirm(onebert, folder, fresh, tmp_path):
    out = tmp_path / "tone.safetensors"
    record, progress = recorded(onebert(*train_arguments(folder, out, "--method", "layernorm", *fresh, "--json")))
    assert record["digest"] == load(out).digest
    assert record["file_bytes"] == out.stat().st_size
    assert (record["task"], record["method"], record["metric"]) == ("tone", "layernorm", "accuracy")
    # 3 layers of 4 vectors of 32, and 2 of the embeddings; a classifier of 2 x 32 + 2.
    assert (record["delta_parameters"], record["head_parameters"]) == (448, 66)
    assert record["rows"] == {"train": 48, "validation": 20, "test": 12}
    assert "layernorm trains 448 parameters" in progress
    assert f"step {record['best_step']}/18" in progress
    assert list(tmp_path.iterdir()) == [out]

    for split in ("test", "validation"):
        measured, _ = recorded(onebert(*evaluate_arguments(out, folder, "--split", split, "--json")))
        assert measured["metrics"] == record[split]
    assert recorded(onebert(*evaluate_arguments(out, folder, "--json")))[0]["split"] == "test"
    other_base = ("evaluate", out, "--data", folder, "--base", tiny_base("electra"), "--device", "cpu")
    assert "error: made for" in refused(onebert(*other_base))


@pytest.mark.parametrize(
    ("row_of", "method", "task_type", "metric"),
    [
        (tagged, "adapter:4", "token", "entity_f1"),
        (asked, "diff-pruning:0.5%", "span", "f1"),
    ],
)
def test_tasks_on_tokens_and_spans_are_trained_and_evaluated(onebert, tmp_path, row_of, method, task_type, metric):
    data, out = write_splits(tmp_path / "data", row_of), tmp_path / "task.safetensors"
    record, _ = recorded(onebert(*train_arguments(data, out, "--method", method, "--json")))
    assert (record["task_type"], record["metric"], record["settings"]["pooling"]) == (task_type, metric, "none")
    assert load(out).manifest.task_type == task_type
    for split in ("test", "validation"):
        measured, _ = recorded(onebert(*evaluate_arguments(out, data, "--split", split, "--json")))
        assert (measured["metric"], measured["metrics"]) == (metric, record[split])


@pytest.mark.parametrize(
    ("method", "pooling", "auto_class"),
    [("reinit+bitfit", "pooler", "AutoModelForSequenceClassification"), ("full", "mean", "SentenceTransformer")],
)
def test_what_is_no_delta_is_a_checkpoint_that_scores_what_training_said(
    onebert, folder, tmp_path, method, pooling, auto_class
):
    out = tmp_path / "tone"
    changes = ("--method", method, "--pooling", pooling, "--learning-rate", "0.002", "--json")
    record, progress = recorded(onebert(*train_arguments(folder, out, *changes)))
    assert f"{out} is for {auto_class}" in progress
    assert record["digest"] is None
    assert record["file_bytes"] == sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    assert list(tmp_path.iterdir()) == [out]
    refused(onebert(*evaluate_arguments(out, folder)))

    rows = [line.split(",") for line in (folder / "test.csv").read_text().splitlines()[1:]]
    texts = [text for text, _ in rows]
    if pooling == "mean":
        model = SentenceTransformer(str(out), device="cpu", local_files_only=True)
        logits, names = model.encode(texts), model[0].model.config.id2label
        labels = [names[int(row.argmax())] for row in logits]
    else:
        answers = transformers.pipeline("text-classification", str(out), device="cpu")(texts)
        labels = [answer["label"] for answer in answers]
    assert accuracy_score([label for _, label in rows], labels) == pytest.approx(record["test"]["accuracy"])


def test_a_checkpoint_is_written_beside_nothing_else(onebert, folder, tmp_path, monkeypatch):
    """Refused before training, whether named or not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tone").mkdir()
    (tmp_path / "tone" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    arguments = train_arguments(folder, "file", "--method", "full")
    progress = refused(onebert(*arguments))
    assert progress == "error: file exists; name a new or an empty folder\n"
    place = arguments.index("--out")
    progress = refused(onebert(*arguments[:place], *arguments[place + 2 :]))
    assert progress == "error: tone exists; name a new or an empty folder\n"


def test_a_training_that_fails_leaves_nothing_behind(onebert, folder, tmp_path):
    asked = ("--epochs", "20", "--learning-rate", "1e38")
    status, _, error = onebert(*train_arguments(folder, tmp_path / "tone.safetensors", *asked))
    assert status == 1
    assert error.endswith("try a smaller learning rate\n")
    assert list(tmp_path.iterdir()) == []


def test_the_table_says_what_to_do_next(onebert, folder, tmp_path):
    out = tmp_path / "tone.safetensors"
    printed, notes = succeeded(onebert(*train_arguments(folder, out, "--epochs", "6", "--method", "bitfit")))
    assert f"next: onebert push {out} --task tone" in printed
    # Most who train never export: for them what PEFT cannot hold would be a doubt about a good result.
    assert "PEFT" not in printed + notes
    assert "\n39 steps, those of a short run from the exact head included\n" in notes.split("step ")[0]
    assert len(re.findall(r"^about [\d hmins]+ in all$", notes, re.MULTILINE)) == 1
    assert "896 parameters (" in printed  # 3 layers of 7 vectors of 32 and one of 64, and b_LN0
    printed, _ = succeeded(onebert(*evaluate_arguments(out, folder)))
    assert "accuracy" in printed


def test_the_baselines_come_before_the_first_step_and_what_is_kept_after_the_last(onebert, folder, tmp_path):
    out = tmp_path / "tone.safetensors"
    record, progress = recorded(onebert(*train_arguments(folder, out, "--json")))
    constant, head = record["yardsticks"]["constant"], record["yardsticks"]["head"]
    assert constant["validation"]["accuracy"] == constant["test"]["accuracy"] == 0.5
    of_head = f"an exact head alone on the frozen base: accuracy {head['validation']['accuracy']:.4f}"
    for line in (f"{constant['answer']}: accuracy 0.5000", of_head):
        assert 0 < progress.index(f"baseline: {line} on validation\n") < progress.index("\nstep ")
    yardsticks = load(out).manifest.training["yardsticks"]
    assert yardsticks["head"] == {split: head[split]["accuracy"] for split in ("validation", "test")}
    assert yardsticks["constant"] == {"validation": 0.5, "test": 0.5}
    scores = record["contest"]["validation"]
    assert set(scores) == {"fresh", "head", "alone"}
    assert record["validation"]["accuracy"] == scores[record["contest"]["kept"]] == max(scores.values())
    (line,) = (line for line in progress.rpartition("\nstep ")[2].splitlines() if line.startswith("kept: "))
    assert all(f"{score:.4f}" in line for score in scores.values())
    assert load(out).manifest.training["contest"] == record["contest"]
    assert list(tmp_path.iterdir()) == [out]


def test_the_head_alone_is_one_command_and_no_step(onebert, folder, tmp_path):
    out = tmp_path / "tone.safetensors"
    printed, _ = succeeded(onebert(*head_arguments(folder, out)))
    assert f"it is the head alone, on the frozen base\nnext: onebert push {out} --task tone\n" in printed
    assert "none: the head is exact" in printed
    assert "tokens/s" not in printed
    first = out.read_bytes()
    record = json.loads(onebert(*head_arguments(folder, out, "--json"))[1])
    assert out.read_bytes() == first
    assert (record["steps"], record["delta_parameters"], record["history"]) == (0, 0, [])
    assert record["test"] == record["yardsticks"]["head"]["test"]
    strength = record["yardsticks"]["head"]["strength"]
    training = load(out).manifest.training
    assert record["strength"] == training["strength"] == strength
    never = {"learning_rate", "head_learning_rate", "batch_size", "epochs", "dropout", "steps", "best_step"}
    assert not never & (training.keys() | record["settings"].keys())
    printed, _ = succeeded(onebert("inspect", out))
    assert re.search(rf"strength\W+{strength:g}\b", printed)
    assert "batch size" not in printed
    measured, _ = recorded(onebert(*evaluate_arguments(out, folder, "--json")))
    assert measured["metrics"] == record["test"]


def test_what_is_no_better_than_a_constant_is_not_recommended(onebert, folder, fresh, tmp_path):
    short = ("--method", "frozen", "--max-steps", "1", "--learning-rate", "1e-9", *fresh)
    printed, _ = succeeded(onebert(*train_arguments(folder, tmp_path / "tone.safetensors", *short)))
    assert "next: onebert push" not in printed
    remedies = "--class-weight balanced where labels are uneven, more rows or another --method"
    assert re.search(f"try {remedies}: always answering '.*' is not behind by more than the lead's", printed)
    assert printed.rstrip().endswith("; onebert check --labels looks for wrong labels")


def test_what_a_constant_beats_on_the_test_rows_alone_is_a_warning_and_no_advice(onebert, tmp_path):
    """Test rows measure what validation rows, or folds, have decided; advice by them would use them up."""
    words = {"praise": "good", "blame": "bad"}
    train = [f"the parcel was {words[kind]} {i},{kind}" for i in range(80) for kind in ["praise"] * 3 + ["blame"] * 2]
    test = [f"the parcel was {word} {i},{('praise', 'blame')[i % 5 > 1]}" for i in range(10) for word in words.values()]
    for split, rows in (("train", train), ("test", test)):
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    printed, _ = succeeded(onebert(*head_arguments(tmp_path, tmp_path / "tone.safetensors")))
    assert "warning: accuracy 0.5000: always answering 'blame' gives 0.6000" in printed
    assert "next: onebert push" in printed


def test_one_row_in_a_hundred_is_not_forgotten_by_default(onebert, tmp_path):
    """One file, and nothing said but where it is: of three hundred rows none of the rare three is held out."""
    out, rows = tmp_path / "rare.safetensors", tmp_path / "rows.csv"
    lines = [f"text {i} of {THINGS[i % 6]},{'rare' if i % 100 == 7 else 'common'}" for i in range(300)]
    rows.write_text("\n".join(["text,label", *lines]) + "\n")
    common = ("--data", rows, "--base", tiny_base(), "--device", "cpu")
    printed, notes = succeeded(onebert("train", "--task", "rare", "--out", out, *common))
    assert "note: the labels are uneven, 'common' has 267 of 270 training rows: macro_f1 decides, not accuracy" in notes
    assert "warning: never answers 'rare', not even in training; no validation row has it" in printed
    assert "next: onebert push" not in printed
    printed = onebert("evaluate", out, *common, "--json")[1]
    record = json.loads(printed)
    assert (record["metric"], record["useful"]) == ("macro_f1", False)
    assert "never answers 'rare' (3 rows)" in record["warnings"]


def test_a_terminal_sees_what_goes_on(onebert, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(console, "err", Console(force_terminal=True, stderr=True, width=100))
    out = tmp_path / "tone.safetensors"
    _, progress = succeeded(onebert(*train_arguments(folder, out, "--max-length", "4096")))
    parts = (
        "reading ",
        "loading the base",
        "tokenizing 80 rows",
        "epoch 3.0, loss 0.",
        ", best 0.",
        "tokens/s",
        "left",
    )
    assert all(text in progress for text in parts)
    assert "measuring the test split" in progress
    # Evaluations would scroll the notes away.
    assert "step 6/18" not in progress
    assert progress.index("note: the base takes at most") < progress.index("epoch")
    _, progress = succeeded(onebert(*evaluate_arguments(out, folder)))
    assert "evaluating 12 rows" in progress


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_bytes(onebert, folder, tmp_path):
    killed, whole = tmp_path / "killed.safetensors", tmp_path / "whole.safetensors"
    longer = ("--epochs", "20", "--patience", "0")
    command = [sys.executable, "-c", "from onebert_store.command.cli import main; main()"]
    # Another number of threads may sum in another order.
    env = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(
        [*command, *train_arguments(folder, killed, *longer)], stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("step "):  # said after an evaluation, whose checkpoint is then on disk
                process.kill()
    assert process.returncode == -signal.SIGKILL, seen
    assert not killed.exists()
    checkpoint = killed.with_name("killed.safetensors.checkpoint")
    assert checkpoint.exists()

    _, progress = succeeded(onebert(*train_arguments(folder, killed, *longer)))
    assert "note: continued at step" in progress
    assert not checkpoint.exists()
    assert onebert(*train_arguments(folder, whole, *longer))[0] == 0
    assert killed.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--task", "Tone!"], "is not a name"),
        (["--method", "adapters"], "Methods are frozen, head, bitfit"),
        (["--method", "spafit:1-2-I"], "needs 4 layers or more; the base has 3"),
        (["--method", "head"], "found exactly, without a step: leave out --epochs, --batch-size, --learning-rate\n"),
        (["--data", "nowhere"], "neither a file nor a folder"),
        (["--label", "kind"], "train.csv: no column kind for --label"),
        (["--positive", "bad"], "--positive bad is no label of the task; it has 'complaint', 'praise'"),
        (["--metric", "pearson"], "the metrics of this task are accuracy"),
        (["--base", "nowhere/nothing"], "nowhere/nothing"),
        (["--device", "cuda:99"], "device is cpu, cuda or cuda:N"),
        (["--out", "no/such/folder/x"], "--out: there is no folder no/such/folder"),
        (["--out", "."], "--out: . is a folder; it names the file to write"),
        (["--method", "reinit+adapter:4"], "neither a delta nor a checkpoint"),
        (["--pooling", "pooler", "--base", str(tiny_base("electra"))], "is cls or mean, not pooler"),
    ],
)
def test_errors_are_one_line_and_leave_no_file(onebert, folder, tmp_path, monkeypatch, changes, message):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    progress = refused(onebert(*train_arguments(folder, tmp_path / "x.safetensors"), *changes))
    assert message in progress
    assert list(tmp_path.iterdir()) == []


def test_data_is_not_written_over(onebert, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\na good parcel,praise\na bad parcel,complaint\n")
    before = rows.read_bytes()
    asked = ("--task", "tone", "--data", rows, "--out", rows, "--method", "head", "--base", tiny_base())
    status, printed, progress = onebert("train", *asked)
    assert (status, printed, progress) == (1, "", "error: --out is a file that is read\n")
    assert rows.read_bytes() == before
