"""The loop on a tiny random base: what it changes, repeats, resumes and writes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bases import Reference, tiny_base
from onebert_encoder.encode import NO_DROPOUT
from onebert_store.delta import check
from onebert_store.errors import InvalidManifest, InvalidMethod, InvalidSettings, NotFinite, TooLarge
from onebert_store.format import dumps, loads
from onebert_training import checkpoint
from onebert_training.evaluation import BATCH_TOKENS, predict, token_batches
from onebert_training.loop import State, finish, take_step, train
from onebert_training.metrics import evaluate_predictions
from onebert_training.run import Run, Settings

METHODS = ("frozen", "bitfit", "bitfit:bq,bm2", "layernorm", "gamma:gLN1", "lora:r=2", "spafit:0-1-II,r=2")
QUICK = Settings(epochs=2, learning_rate=2e-2)


class InterruptedRunError(Exception):
    """Raised by a test in the middle of a run."""


def run_of(base, data, **changes):
    return Run(base, data, replace(QUICK, **changes), "tone")


def reference(delta, pooling="mean"):
    """The plain Hugging Face model that carries the file's weights."""
    return Reference(tiny_base("bert"), {name: array.copy() for name, array in delta.tensors.items()}, pooling)


def reference_logits(run, delta, split):
    model = reference(delta, run.settings.pooling)
    return np.stack([model.logits(t.input_ids, t.type_ids).numpy() for t in run.tokens[split]])


def retyped(data, task_type):
    """The same texts with labels of another task type."""

    def gold(split):
        values = split.gold.astype(np.float32)
        if task_type == "regression":
            return 100 + 40 * values + np.arange(len(values), dtype=np.float32)
        return np.stack([values, 1 - values, np.zeros_like(values)], axis=1)

    splits = {name: replace(split, gold=gold(split)) for name, split in data.splits.items()}
    labels = ("score",) if task_type == "regression" else ("a", "b", "c")
    return replace(data, task_type=task_type, labels=labels, splits=splits)


def test_it_learns(base, data):
    result = train(run_of(base, data, epochs=12, batch_size=8))
    assert result.validation["accuracy"] >= 0.9
    assert result.test["accuracy"] >= 0.9


@pytest.mark.parametrize("method", METHODS)
def test_the_delta_is_what_the_method_names_and_the_base_stays(base, data, method):
    before = {name: tensor.clone() for name, tensor in base.params.items()}
    run = run_of(base, data, method=method, max_steps=4)
    delta = train(run).delta
    assert all(torch.equal(before[name], tensor) for name, tensor in base.params.items())
    assert not any(tensor.requires_grad for tensor in base.params.values())
    planned = {f"delta.{parameter.name}" for parameter in run.plan.parameters}
    planned |= {f"lora_{half}.{module.name}" for module in run.plan.modules for half in "AB"}
    assert set(delta.tensors) == planned | {"head.weight", "head.bias"}
    unchanged = {name for name, tensor in delta.tensors.items() if not np.any(tensor)}
    # The key's bias cancels in the softmax: counted by the papers, never moved.
    assert unchanged == {name for name in delta.tensors if name.endswith("attention.self.key.bias")}
    numbers = sum(tensor.size for tensor in delta.tensors.values())
    assert numbers == run.delta_parameters + run.head_parameters


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_the_file_in_a_plain_model_scores_what_training_said(base, data, method, pooling):
    run = run_of(base, data, method=method, pooling=pooling, max_steps=5)
    result = train(run)
    delta = loads(dumps(result.delta))
    check(delta, base.spec)
    logits = reference_logits(run, delta, "test")
    assert evaluate_predictions("single_label", data.splits["test"].gold, logits) == result.test
    model = reference(delta, pooling)
    golden = delta.manifest.golden
    for ids, recorded in zip(golden.input_ids, golden.logits, strict=True):
        assert model.logits(ids).numpy() == pytest.approx(recorded, abs=1e-4)


@pytest.mark.parametrize("task_type", ["regression", "multi_label"])
def test_other_task_types(base, data, task_type):
    run = run_of(base, retyped(data, task_type), method="bitfit", epochs=30, batch_size=8)
    result = train(run)
    logits = reference_logits(run, result.delta, "test")
    scores = evaluate_predictions(task_type, run.data.splits["test"].gold, logits)
    assert scores == pytest.approx(result.test, rel=1e-3)
    if task_type == "regression":
        # Targets of 100 to 190 from a head that starts near 0: learned in their own unit, written in the data's.
        assert result.test["mae"] < 25
    else:
        assert result.test["micro_f1"] > 0.8


def test_a_step_has_the_gradient_of_the_plain_model(base, data):
    run = run_of(base, data, method="layernorm")
    run.dropout = NO_DROPOUT
    state = State(run.init_leaves())
    weight = state.leaves["head.weight"].detach().clone()
    chosen = run.batch_at(0)
    loss = take_step(run, state)

    plain = Reference(tiny_base("bert"), {}, "mean").model
    pooled = torch.stack(
        [
            plain(torch.tensor([t.input_ids]), token_type_ids=torch.tensor([t.type_ids])).last_hidden_state[0].mean(0)
            for t in (run.tokens["train"][i] for i in chosen)
        ]
    )
    expected = F.cross_entropy(pooled @ weight.T, run.gold[chosen])
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    expected.backward()
    own = dict(plain.named_parameters())
    names = [name.removeprefix("delta.") for name in state.leaves if name.startswith("delta.")]
    ours = torch.cat([state.leaves[f"delta.{name}"].grad for name in names])
    theirs = torch.cat([own[name].grad for name in names])
    # Clipping scales all gradients by one number.
    assert F.cosine_similarity(ours, theirs, dim=0).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("method", ["bitfit", "lora:r=2", "layernorm"])
def test_an_equal_run_gives_equal_bytes(base, data, method):
    one, two, other = (dumps(train(run_of(base, data, method=method, seed=seed)).delta) for seed in (3, 3, 4))
    assert one == two
    assert one != other


@pytest.mark.parametrize("task_type", ["single_label", "regression"])
@pytest.mark.parametrize("method", ["bitfit", "lora:r=2"])
def test_an_interrupted_run_continues_to_the_same_bytes(base, data, tmp_path, method, task_type):
    if task_type == "regression":
        data = retyped(data, "regression")
    settings = {"method": method, "batch_size": 4}  # 12 steps an epoch, an evaluation after every third
    whole = dumps(train(run_of(base, data, **settings)).delta)
    file = tmp_path / "checkpoint"

    def interrupt(progress):
        if progress.step == 17:
            raise InterruptedRunError

    with pytest.raises(InterruptedRunError):
        train(run_of(base, data, **settings), interrupt, file)
    notes = []
    result = train(run_of(base, data, **settings), lambda p: notes.append(p.note), file)
    assert result.resumed_at == 15
    assert notes[0] == "continued at step 15"
    assert dumps(result.delta) == whole


def test_a_finished_run_that_was_interrupted_before_its_file_only_writes_it(base, data, tmp_path):
    file = tmp_path / "checkpoint"
    first = train(run_of(base, data), checkpoint_file=file)
    steps = []
    again = train(run_of(base, data), lambda p: steps.append(p.step), file)
    assert again.resumed_at == first.steps
    assert steps == [first.steps] * 2  # said once as a note, once before the test
    assert dumps(again.delta) == dumps(first.delta)


def lose_tensor(tensors, facts):
    del tensors["exp_avg.head.bias"]


def misshape_tensor(tensors, facts):
    tensors["best.head.bias"] = torch.zeros(3)


def lose_fact(tensors, facts):
    del facts["seconds"]


@pytest.mark.parametrize("damage", ["another run", "not a checkpoint", lose_tensor, misshape_tensor, lose_fact])
def test_a_checkpoint_that_does_not_fit_is_said_and_not_used(base, data, tmp_path, damage):
    file = tmp_path / "checkpoint"
    train(run_of(base, data, seed=1 if damage == "another run" else 0), checkpoint_file=file)
    if damage == "not a checkpoint":
        file.write_bytes(b"\x00" * 100)
    elif callable(damage):
        tensors, facts = checkpoint.load(file)
        damage(tensors, facts)
        checkpoint.save(file, tensors, facts)
    notes = []
    result = train(run_of(base, data), lambda p: notes.append(p.note), file)
    assert notes[0] == "started anew: the checkpoint is not of this run"
    assert result.resumed_at == 0
    assert dumps(result.delta) == dumps(train(run_of(base, data)).delta)


def test_the_best_evaluation_is_written_and_not_the_last(base, data):
    scores = {}
    run = run_of(base, data, epochs=6)
    result = train(run, lambda p: scores.update({p.step: p.validation["accuracy"]} if p.validation else {}))
    assert result.validation["accuracy"] == max(scores.values())
    assert scores[result.best_step] == max(scores.values())
    logits = reference_logits(run, result.delta, "validation")
    assert evaluate_predictions("single_label", data.splits["validation"].gold, logits) == result.validation


def test_it_stops_when_nothing_gets_better(base, data):
    settings = {"learning_rate": 1e-12, "epochs": 5, "evals_per_epoch": 3}  # nothing moves, so nothing improves
    assert train(run_of(base, data, **settings, patience=2)).steps == 3
    assert train(run_of(base, data, **settings)).steps == 7
    assert train(run_of(base, data, **settings, patience=0)).steps == 15


def test_the_schedule_warms_up_and_decays_to_zero(base, data):
    run = run_of(base, data, epochs=100, learning_rate=1.0)
    rates = [run.learning_rate_at(step) for step in range(run.steps + 1)]
    warmup = round(0.06 * run.steps)
    assert rates[:3] == pytest.approx([1 / warmup, 2 / warmup, 3 / warmup])
    assert max(rates) == rates[warmup - 1] == pytest.approx(1.0)
    assert rates[-2] == pytest.approx(1 / (run.steps - warmup))
    assert rates[-1] == 0


def test_every_epoch_sees_every_row_once_in_another_order(base, data):
    run = run_of(base, data, batch_size=7)
    epochs = [[i for step in range(7) for i in run.batch_at(epoch * 7 + step)] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(48))
    assert epochs[0] != epochs[1]


def test_dropout_is_on_in_training(base, data):
    losses = []
    for dropout in (None, NO_DROPOUT):
        run = run_of(base, data)
        run.dropout = dropout or run.dropout
        losses.append(take_step(run, State(run.init_leaves())))
    assert losses[0] != losses[1]


def test_a_bfloat16_run_records_float32_logits(data):
    from onebert_encoder.base import load_base

    base = load_base(str(tiny_base("bert")), dtype=torch.bfloat16)
    delta = train(run_of(base, data, max_steps=3)).delta
    assert {tensor.dtype for tensor in delta.tensors.values()} == {np.dtype(np.float32)}
    model = reference(delta)
    for ids, recorded in zip(delta.manifest.golden.input_ids, delta.manifest.golden.logits, strict=True):
        assert model.logits(ids).numpy() == pytest.approx(recorded, abs=1e-4)


def test_the_manifest_says_where_the_delta_comes_from(base, data):
    run = run_of(base, data, method="bitfit:bq", max_steps=3, max_length=9, seed=5)
    result = train(run)
    manifest = result.delta.manifest
    assert (manifest.labels, manifest.method) == (["complaint", "praise"], "bitfit:bq")
    assert manifest.max_length == 9
    assert manifest.base.digest == base.spec.digest
    training = manifest.training
    assert training["task"] == "tone"
    assert training["data"]["digest"] == data.digest
    assert training["data"]["rows"] == {"train": 48, "validation": 20, "test": 12}
    assert (training["seed"], training["steps"], training["learning_rate"]) == (5, 3, 2e-2)
    assert training["validation"] == result.validation
    assert training["test"] == result.test
    # Three layers of 32 numbers, and a classifier of 2 x 32 + 2.
    assert training["parameters"]["delta"] == 96
    assert training["parameters"]["head"] == 66
    assert training["dropout"] == {"hidden": 0.1, "attention": 0.1}
    assert any("are cut to 9 tokens" in note for note in run.notes)


def test_a_diverging_run_stops_in_one_line(base, data):
    with pytest.raises(NotFinite, match="try a smaller learning rate") as caught:
        train(run_of(base, data, learning_rate=1e38, epochs=50))
    assert "\n" not in caught.value.detail


def test_what_is_no_number_at_the_end_is_one_line(base, data):
    without_test = replace(data, splits={name: data.splits[name] for name in ("train", "validation")})
    run = run_of(base, without_test)
    state = State(run.init_leaves())
    state.best = {name: leaf.detach().clone() for name, leaf in state.leaves.items()}
    state.validation = {"accuracy": math.nan}
    with pytest.raises(InvalidManifest, match=r"^training: a number is not finite$"):
        finish(run, state, 0)
    state.best["head.weight"].fill_(3e38)
    with pytest.raises(NotFinite, match=r"^the answers are no longer numbers; try a smaller learning rate$"):
        finish(run, state, 0)


def test_what_cannot_be_trained_is_refused_before_the_first_step(base, data):
    with pytest.raises(InvalidMethod):
        run_of(base, data, method="spafit:1-2-I")
    with pytest.raises(InvalidMethod):
        run_of(base, data, method="bitfit:bp")
    with pytest.raises(InvalidManifest, match="labels"):
        run_of(base, replace(data, labels=("good\nbad", "other")))
    with pytest.raises(InvalidManifest, match="training: a text has half a surrogate pair"):
        run_of(base, replace(data, name="caf\udce9"))  # a folder's name that is not UTF-8
    many = tuple(str(i) for i in range(600_000))
    with pytest.raises(TooLarge, match="64 MiB"):
        run_of(base, replace(data, labels=many))


def test_a_base_without_pooler_refuses_its_pooling(data):
    from onebert_encoder.base import load_base

    with pytest.raises(InvalidSettings, match="cls, mean"):
        run_of(load_base(str(tiny_base("electra"))), data, pooling="pooler")


@pytest.mark.parametrize("family", ["roberta", "distilbert", "electra"])
def test_other_families_train(data, family):
    from onebert_encoder.base import load_base

    base = load_base(str(tiny_base(family)))
    result = train(run_of(base, data, max_steps=3))
    check(loads(dumps(result.delta)), base.spec)


def test_predictions_keep_the_order_whatever_the_batches(base, data):
    run = run_of(base, data)
    with torch.no_grad():
        row = run.fold(run.init_leaves())
    tokens = run.tokens["train"]
    logits = predict(base, row, tokens)
    assert np.allclose(predict(base, row, tokens[::-1])[::-1], logits, atol=1e-5)
    alone = np.concatenate([predict(base, row, [text]) for text in tokens[:5]])
    assert np.allclose(alone, logits[:5], atol=1e-5)


def test_batches_hold_at_most_their_tokens():
    tokens = [[0] * length for length in (BATCH_TOKENS - 1, 1, 1, BATCH_TOKENS + 5, 3)]
    assert list(token_batches(range(5), tokens)) == [[0, 1], [2], [3], [4]]
