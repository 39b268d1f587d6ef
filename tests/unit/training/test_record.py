"""The record of a run: JSON values that agree with the run, its file and its history."""

import json
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest

from onebert_store.file.format import dumps, loads
from onebert_training.fit.loop import take_step, train
from onebert_training.fit.record import make_record
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import State
from onebert_training.report.records import load_records
from trainings import short_run

SETTINGS = Settings(method="bitfit", epochs=3, learning_rate=1e-2, evals_per_epoch=2, measure_train=True, seed=7)


def recorded(base, data, **changes):
    run = short_run(base, data, SETTINGS, **changes)
    result = train(run)
    content = dumps(result.delta) if result.delta else b""
    record = make_record(run, result, len(content) or None, 48, "figure 1")
    return run, result, json.loads(json.dumps(record, allow_nan=False)), content


def test_a_record_says_what_was_asked_and_what_came_of_it(base, data):
    run, result, record, content = recorded(base, data)
    filled = {"pooling": "mean", "train_rows": 48}
    assert record["settings"] == asdict(SETTINGS) | filled
    assert record["data"] == {"name": data.name, "digest": data.digest}
    assert (record["experiment"], record["fingerprint"]) == ("figure 1", run.fingerprint)
    assert (record["validation"], record["test"]) == (dict(result.validation), dict(result.test))
    manifest = loads(content).manifest.training
    assert (record["test"], record["steps"]) == (manifest["test"], manifest["steps"])
    assert record["digest"] == loads(content).digest
    assert record["file_bytes"] == len(content)


def test_the_history_has_every_evaluation(base, data):
    steps = []
    run = short_run(base, data, SETTINGS)
    result = train(run, lambda _, progress: steps.append((progress.step, progress.loss, progress.validation)))
    history = make_record(run, result, None)["history"]
    evaluated = [(step, scores) for step, _, scores in steps if scores]
    assert [(entry["step"], entry["validation"]) for entry in history] == evaluated
    assert [entry["step"] for entry in history] == [2, 4, 6, 8, 9]
    assert [entry["epoch"] for entry in history] == [pytest.approx(step / 3, abs=1e-4) for step in (2, 4, 6, 8, 9)]
    again = short_run(base, data, SETTINGS)
    state = State(again.init_values())
    losses = [loss for _ in range(9) for loss in take_step([(again, state)])]
    # What is shown is the mean of the steps since the last evaluation, which the next one starts anew.
    shown = {step: loss for step, loss, _ in steps if loss is not None}
    for before, after in pairwise((0, 2, 4, 6, 8, 9)):
        for step in range(before + 1, after + 1):
            assert shown[step] == pytest.approx(np.mean(losses[before:step]))
        assert shown[after] in [entry["loss"] for entry in history]
    assert min(entry["validation_loss"] for entry in history) < history[0]["loss"]


@pytest.mark.parametrize(
    "method", ["bitfit", "init-bias:bq", "bitfit+gamma", "random-bias:0.5%", "ia3", "ia3:inner,m3", "lora"]
)
def test_the_change_is_the_mean_difference_of_every_trained_vector(base, data, method):
    _, _, record, content = recorded(base, data, method=method)
    wanted = {}
    for name, tensor in loads(content).tensors.items():
        kind, _, path = name.partition(".")
        if kind in ("delta", "scale", "output_scale"):
            symbol = base.spec.symbols[path].replace("W_", f"{kind[0]}_")
            layer = next((int(part) for part in path.split(".") if part.isdigit()), None)
            wanted[symbol, layer] = float(np.abs(tensor - (kind != "delta")).mean())
    assert bool(wanted) == (method != "lora")
    got = {(change["symbol"], change["layer"]): change["mean_abs"] for change in record["change"]}
    assert len(got) == len(record["change"])
    assert got == pytest.approx(wanted)


@pytest.mark.parametrize("method", ["bitfit", "random:0.2%", "diff-pruning:0.5%", "svd", "full", "reinit+bitfit"])
def test_the_report_reads_every_record(base, data, tmp_path, method):
    _, result, record, content = recorded(base, data, method=method, max_steps=4)
    (tmp_path / "run.json").write_text(json.dumps(record))
    (read,) = load_records([tmp_path])
    assert (read.method, read.deciding_score) == (record["method"], result.validation["accuracy"])
    assert (record["digest"] is None) == (not content)
