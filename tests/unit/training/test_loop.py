"""The training loop on a tiny random base: what it changes and writes, and that runs repeat and resume exactly."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bases import FAMILIES, Reference, loaded, tiny_base
from onebert_encoder.base.base import load_base
from onebert_store.errors import InvalidManifest, NotFinite, TooLarge
from onebert_store.file.delta import require_fit
from onebert_store.file.format import MAX_HEADER_BYTES, dumps, loads
from onebert_training.fit import checkpoint
from onebert_training.fit.loop import Active, advance, ignore, take_step, train
from onebert_training.fit.result import finish
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import State
from onebert_training.methods.rules import HEAD_LEARNING_RATE
from onebert_training.methods.table import METHODS
from scoring import evaluate
from trainings import interrupted, short_run

SERVABLE = (
    *("frozen", "head", "bitfit", "bitfit:bq,bm2", "init-bias", "random-bias:0.5%", "layernorm", "gamma:gLN1"),
    *("random:0.2%", "random-rows:1%", "random-cols:1%", "lora:r=2", "lora-xs:r=3", "spafit:0-1-II,r=2", "adapter:4"),
    *("ia3", "red", "diff-pruning:0.5%", "svd:r=2", "bitfit+gamma:gLN2+random:0.2%"),
)
# Every kind of method, and low-rank differences of the MLP, whose matrices are of two shapes.
TRAINED = (*(name for name in METHODS if name not in ("head", "reinit")), "lora:r=2,targets=all", "reinit+bitfit")
ARGUMENTS = {
    **{"random": ":0.2%", "random-rows": ":1%", "random-cols": ":1%", "random-bias": ":0.5%"},
    **{"spafit": ":0-1-II,r=2", "diff-pruning": ":0.5%", "adapter": ":4", "lora-xs": ":r=3"},
}
QUICK = Settings(epochs=2, learning_rate=2e-2)


run_of = partial(short_run, settings=QUICK)


def reference(delta, pooling="mean"):
    """The plain Hugging Face model that carries the file's weights."""
    return Reference(tiny_base("bert"), {name: array.copy() for name, array in delta.tensors.items()}, pooling)


def reference_logits(run, delta, split):
    model = reference(delta, run.pooling)
    return np.stack([model.logits(t.input_ids, t.type_ids).numpy() for t in run.inputs.splits[split].tokens])


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


@pytest.mark.parametrize(("family", "method"), [("bert", "bitfit"), ("modernbert", "lora:r=4,targets=all")])
def test_it_learns(data, family, method):
    base = load_base(str(tiny_base(family)))
    assert train(run_of(base, data, method=method, epochs=12, batch_size=8)).test["accuracy"] >= 0.9


def assert_is_what_the_method_names(run, delta):
    planned = {site.name for part in run.plan.trainables for site in part.sites}
    adapted = {f"{name}.{kind}" for name in planned for kind in ("weight", "bias")}
    held = {name: tensor for name, tensor in delta.tensors.items() if not name.startswith("head.")}
    assert {name.partition(".")[2] for name in held} <= planned | adapted
    values = {name: tensor for name, tensor in held.items() if not name.startswith("sparse_index.")}
    # The key's bias cancels in the softmax: counted by the papers, never moved.
    moved = {name: tensor - ("scale." in name) for name, tensor in values.items() if "key.bias" not in name}
    assert all(np.any(tensor) for tensor in moved.values())
    if "random-bias" in run.settings.method:
        assert sum(map(np.count_nonzero, moved.values())) <= run.delta_parameters
    elif "svd" in run.settings.method:  # all singular parts that fit: less than one is missing
        missing = run.delta_parameters - sum(tensor.size for tensor in values.values())
        assert 0 <= missing < max(sum(site.shape) for site in run.plan.trainables[-1].sites)
    else:
        assert sum(tensor.size for tensor in values.values()) == run.delta_parameters


@pytest.mark.parametrize(
    ("method", "pooling"),
    [
        *((method, "pooler") for method in SERVABLE),
        *((method, pooling) for method in ("frozen", "bitfit", "spafit:0-1-I") for pooling in ("mean", "cls")),
    ],
)
def test_the_file_in_a_plain_model_scores_what_training_said(base, data, method, pooling):
    before = {name: tensor.clone() for name, tensor in base.params.items()}
    run = run_of(base, data, method=method, pooling=pooling, max_steps=5)
    result = train(run)
    assert all(torch.equal(before[name], tensor) for name, tensor in base.params.items())
    assert not any(tensor.requires_grad for tensor in base.params.values())
    assert_is_what_the_method_names(run, result.delta)
    delta = loads(dumps(result.delta))
    require_fit(delta, base.spec)
    logits = reference_logits(run, delta, "test")
    assert evaluate("single_label", data.splits["test"].gold, logits) == result.test
    model = reference(delta, pooling)
    golden = delta.manifest.golden
    for ids, recorded in zip(golden.input_ids, golden.logits, strict=True):
        # The exact head of vectors that hardly differ has logits of a thousand.
        assert model.logits(ids).numpy() == pytest.approx(recorded, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("task_type", ["regression", "multi_label"])
def test_other_task_types(base, data, task_type):
    run = run_of(base, retyped(data, task_type), method="bitfit", epochs=24, batch_size=8)
    result = train(run)
    logits = reference_logits(run, result.delta, "test")
    scores = evaluate(task_type, run.data.splits["test"].gold, logits)
    assert scores == pytest.approx(result.test, rel=1e-3)
    if task_type == "regression":
        # Targets are 100 to 190, and the head starts near 0: it learns in units of their spread; the delta undoes that.
        assert result.test["mae"] < 40
    else:
        assert result.test["micro_f1"] > 0.8


@pytest.mark.parametrize(
    ("method", "family", "pooling"),
    [
        *((method, "bert", "mean") for method in ("layernorm", "reinit+bitfit", "reinit+full")),
        *(("full", family, "mean") for family in FAMILIES),
        ("full", "bert", "pooler"),
    ],
)
def test_a_step_has_the_gradient_of_the_plain_model(data, method, family, pooling):
    base = loaded(family)
    base = replace(base, config=replace(base.config, hidden_dropout=0.0, attention_dropout=0.0))
    run = run_of(base, data, method=method, pooling=pooling)
    state = State(run.init_values())
    head = {name: leaf.detach().numpy().copy() for name, leaf in state.leaves.items() if name.startswith("head.")}
    plain = Reference(tiny_base(family), head, pooling)
    parameters = dict(plain.model.named_parameters())
    with torch.no_grad():
        for name, tensor in run.view(state.values).params.items():
            if name in parameters:  # the first of a ModernBERT's layers has no norm, for which the base has ones
                parameters[name].copy_(tensor)
    rows = run.batch_at(0)
    (loss,) = take_step([(run, state)])

    tokens = [run.inputs.splits["train"].tokens[row] for row in rows]
    logits = [plain.differentiable_logits(text.input_ids, text.type_ids) for text in tokens]
    expected = F.cross_entropy(torch.stack(logits), torch.from_numpy(data.splits["train"].gold[rows]))
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    expected.backward()
    names = [name for name in state.leaves if not name.startswith("head.")]
    if "full" in method:
        unstored = {parameter.name for parameter in base.anatomy.parameters if not parameter.stored}
        read = {name for name, tensor in parameters.items() if tensor.grad is not None}
        assert {name.removeprefix("full.") for name in names} == read - unstored
        assert run.plan.num_parameters == sum(state.leaves[name].numel() for name in names)
    ours = [state.leaves[name].grad for name in names]
    theirs = [parameters[name.partition(".")[2]].grad for name in names]
    # Clipping scales all gradients by the same factor.
    scale = torch.cat([g.flatten() for g in theirs]).norm() / torch.cat([g.flatten() for g in ours]).norm()
    for name, mine, other in zip(names, ours, theirs, strict=True):
        # Folding sums in another order; relative to the largest gradients, of order 1, that is rounding.
        torch.testing.assert_close(mine * scale, other, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("method", "task_type", "averaging"),
    [
        *(("lora:r=2", "regression", 0), ("random:0.2%", "single_label", 0), ("frozen", "single_label", 0)),
        *(("diff-pruning:0.5%", "single_label", 0.25), ("bitfit+svd:r=2", "regression", 0.25)),
    ],
)
def test_an_interrupted_run_continues_to_the_same_bytes(base, data, tmp_path, method, task_type, averaging):
    if task_type == "regression":
        data = retyped(data, "regression")
    # 12 steps an epoch, an evaluation after every third; the mean is over six steps where there is one.
    settings = {"method": method, "batch_size": 4, "averaging": averaging, "evals_per_epoch": 4}
    whole = dumps(train(run_of(base, data, **settings)).delta)
    file = tmp_path / "checkpoint"

    with interrupted(lambda _, progress: progress.step == 17) as report:
        train(run_of(base, data, **settings), report, file)
    notes = []
    result = train(run_of(base, data, **settings), lambda _, p: notes.append(p.note), file)
    assert result.resumed_at == 15
    assert notes[0] == "continued at step 15"
    assert dumps(result.delta) == whole
    if method == "frozen":
        assert dumps(train(run_of(base, data, **settings, seed=4)).delta) != whole


def test_what_is_kept_is_the_mean_of_the_last_steps(base, data):
    window, steps = 4, 16
    run = run_of(
        base, data, batch_size=4, epochs=2, max_steps=steps, averaging=window / steps, patience=0, learning_rate=1e-2
    )
    active, taken = Active.start(run, ignore, None), []
    while not active.is_done:
        advance([active], ignore)
        taken.append({name: leaf.detach().clone() for name, leaf in active.state.leaves.items()})
    # The first steps count alike, and each later one takes a share of the window from all before it.
    shares = np.array([0.25 * 0.75 ** (steps - max(step, window)) for step in range(1, steps + 1)])
    assert shares.sum() == pytest.approx(1)
    for name, mean in active.state.averaged.items():
        expected = sum(share * tensors[name] for share, tensors in zip(shares, taken, strict=True))
        torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-7)
    assert (active.state.averaged["head.weight"] - taken[-1]["head.weight"]).abs().max() > 1e-4
    assert run.evaluate(run.model(active.state.kept_values), "validation").scores == active.state.validation


def test_a_finished_run_that_was_interrupted_before_its_file_only_writes_it(base, data, tmp_path):
    file = tmp_path / "checkpoint"
    first = train(run_of(base, data), checkpoint_file=file)
    steps = []
    again = train(run_of(base, data), lambda _, p: steps.append(p.step), file)
    assert again.resumed_at == first.steps
    assert steps == [first.steps] * 2  # said once as a note, once before the test
    assert dumps(again.delta) == dumps(first.delta)


@pytest.mark.parametrize("damage", ["another run", "not a checkpoint", "other tensor", "lost fact"])
def test_a_checkpoint_that_does_not_fit_is_said_and_not_used(base, data, tmp_path, damage):
    file = tmp_path / "checkpoint"
    train(run_of(base, data, seed=1 if damage == "another run" else 0), checkpoint_file=file)
    if damage == "not a checkpoint":
        file.write_bytes(b"\x00" * 100)
    elif damage != "another run":
        tensors, facts = checkpoint.load(file)
        if damage == "lost fact":
            del facts["seconds"]
        else:
            tensors["best.head.bias"] = torch.zeros(3)
        checkpoint.save(file, tensors, facts)
    notes = []
    result = train(run_of(base, data), lambda _, p: notes.append(p.note), file)
    assert notes[0] == "started anew: the checkpoint is not of this run"
    assert result.resumed_at == 0
    assert dumps(result.delta) == dumps(train(run_of(base, data)).delta)


def test_the_best_evaluation_is_written_where_it_is_asked_for(base, data):
    scores = {}
    run = run_of(base, data, epochs=6, keep="best")
    result = train(run, lambda _, p: scores.update({p.step: p.validation["accuracy"]} if p.validation else {}))
    assert result.validation["accuracy"] == max(scores.values())
    assert scores[result.kept_step] == max(scores.values())
    logits = reference_logits(run, result.delta, "validation")
    assert evaluate("single_label", data.splits["validation"].gold, logits) == result.validation


@pytest.mark.parametrize(
    ("task_type", "keep", "spoiled", "last"),
    [
        ("single_label", "last", False, True),
        ("regression", "last", True, False),
        ("single_label", "best", False, False),
    ],
)
def test_the_last_evaluation_is_kept_unless_an_earlier_one_is_really_better(base, data, keep, spoiled, last, task_type):
    if task_type == "regression":
        data = retyped(data, task_type)
    metric, luck = ("accuracy", 2.0) if task_type == "single_label" else ("mae", -1.0)
    settings = {"method": "bitfit", "epochs": 8, "averaging": 0}
    run = run_of(base, data, keep=keep, metric=metric, **settings)
    active = Active.start(run, ignore, None)
    while active.state.step < run.steps - 1:
        advance([active], ignore)
    state = active.state
    kept_step = state.kept_step
    # A score that only luck can have given; what it is worth, the kept values show when they answer again.
    state.validation = {**state.validation, metric: luck}
    if spoiled:
        with torch.no_grad():
            for name in ("head.weight", "head.bias"):
                state.leaves[name].neg_()
    advance([active], ignore)
    assert state.kept_step == (run.steps if last else kept_step)
    assert kept_step < run.steps


def test_it_stops_when_nothing_gets_better(base, data):
    # Nothing moves, so nothing improves.
    settings = {"learning_rate": 1e-12, "head_learning_rate": "same", "epochs": 5, "evals_per_epoch": 3}
    assert train(run_of(base, data, **settings, patience=2)).steps == 3
    assert train(run_of(base, data, **settings)).steps == 15


def test_the_schedule_warms_up_and_decays_to_zero(base, data):
    run = run_of(base, data, epochs=100, learning_rate=1.0)
    rates = [rate for _, rate in map(run.learning_rates_at, range(run.steps + 1))]
    warmup = round(0.06 * run.steps)
    assert rates[:3] == pytest.approx([1 / warmup, 2 / warmup, 3 / warmup])
    assert max(rates) == rates[warmup - 1] == pytest.approx(1.0)
    assert rates[-2] == pytest.approx(1 / (run.steps - warmup))
    assert rates[-1] == 0


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"method": "full"}, (HEAD_LEARNING_RATE, 1e-4)),
        ({"method": "adapter:4"}, (HEAD_LEARNING_RATE, 1e-3)),
        ({"method": "bitfit", "learning_rate": 1e-5}, (HEAD_LEARNING_RATE, 1e-5)),
        ({"method": "bitfit", "learning_rate": 0.5}, (0.5, 0.5)),
        ({"method": "full", "head_learning_rate": "same"}, (1e-4, 1e-4)),
        ({"method": "full", "learning_rate": 2e-4, "head_learning_rate": 1e-5}, (1e-5, 2e-4)),
        ({"method": "frozen"}, (HEAD_LEARNING_RATE, HEAD_LEARNING_RATE)),
        # What is asked for is the rate of what is trained.
        ({"method": "frozen", "learning_rate": 1e-5}, (1e-5, 1e-5)),
        ({"method": "reinit+frozen", "learning_rate": 1e-5}, (1e-5, 1e-5)),
    ],
)
def test_the_head_has_a_rate_of_its_own_and_at_least_that_of_the_rest(base, data, settings, rates):
    run = run_of(base, data, **{"learning_rate": None} | settings)
    assert (run.head_learning_rate, run.learning_rate) == pytest.approx(rates)
    assert (run.manifest.training["head_learning_rate"], run.manifest.training["learning_rate"]) == pytest.approx(rates)


def uneven(data, **changes):
    """One row in twelve is no praise; the validation split has none of these."""
    train, validation = data.splits["train"], data.splits["validation"]
    gold = (np.arange(len(train)) % 12 == 0).astype(np.int64) ^ 1
    splits = {
        "train": replace(train, gold=gold),
        "validation": replace(validation, gold=np.ones(len(validation), dtype=np.int64)),
    }
    return replace(data, splits=splits, **changes)


def test_class_weights_let_a_rare_label_be_learned_that_is_else_never_answered(base, data):
    """Four rows in forty-eight, which differ from others by their numbers alone."""
    rows = uneven(data)
    splits = {**rows.splits, "validation": rows.splits["train"]}
    results = {}
    for weight in (None, "balanced"):
        run = run_of(base, replace(rows, splits=splits), class_weight=weight, method="frozen", epochs=15, patience=0)
        assert run.manifest.training.get("class_weight") == weight
        results[weight] = train(run)
    assert "never answers 'complaint' (4 rows)" in results[None].verdict.warnings
    assert not [warning for warning in results["balanced"].verdict.warnings if warning.startswith("never answers")]


@pytest.mark.parametrize("method", TRAINED)
def test_steps_are_those_of_the_plain_optimizer(base, data, method):
    """The gradients of some leaves are not laid out in memory as the leaves are, which a fused optimizer can miss."""
    method += ARGUMENTS.get(method, "")
    settings = Settings(method=method, learning_rate=1e-2, head_learning_rate=2e-2, max_steps=40)
    run = short_run(base, data, settings)
    state = State(run.init_values())
    twins = {name: leaf.detach().clone(memory_format=torch.contiguous_format) for name, leaf in state.leaves.items()}
    head = [twin for name, twin in twins.items() if name.startswith("head.")]
    rest = [twin for name, twin in twins.items() if not name.startswith("head.")]
    groups = [{"params": part} for part in (head, rest) if part]
    plain = torch.optim.AdamW(groups, weight_decay=0.0, foreach=False, fused=False)
    # The first step finds B = 0, so that A has no gradient before the second.
    for step in range(3):
        take_step([(run, state)])
        for group, rate in zip(plain.param_groups, run.learning_rates_at(step), strict=False):
            group["lr"] = rate
        for name, twin in twins.items():
            twin.grad = state.leaves[name].grad.clone(memory_format=torch.contiguous_format)
        plain.step()
        for name, leaf in state.leaves.items():
            # Both compute Adam's formula in float32; its quotient is of order 1, so rounding is some 1e-7 of the rate.
            torch.testing.assert_close(leaf.detach(), twins[name], rtol=1e-5, atol=1e-6, msg=name)
        # A gradient that is scaled in place is scaled once.
        spans = sorted((leaf.grad.data_ptr(), leaf.grad.nbytes) for leaf in state.leaves.values())
        assert all(begin + size <= after for (begin, size), (after, _) in pairwise(spans))
    # What is measured has no noise of a step: neither dropout nor the gates of pruning.
    first, again = (run.evaluate(run.model(state.averaged), "validation") for _ in range(2))
    assert first.loss == again.loss


def test_no_two_seeds_and_no_two_steps_have_one_dropout(base, data):
    runs = [run_of(base, data, seed=seed) for seed in (0, 1, 2, 2**31 - 1)]
    drawn = [torch.rand(4, generator=run.generator_at(step)) for run in runs for step in range(50)]
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == len(drawn)
    again = run_of(base, data, seed=2).generator_at(7)
    assert torch.equal(torch.rand(4, generator=again), drawn[2 * 50 + 7])


def test_the_manifest_says_where_the_delta_comes_from(base, data):
    run = run_of(base, data, method="bitfit:bq", max_steps=3, max_length=9, seed=5)
    result = train(run)
    manifest = result.delta.manifest
    assert (manifest.labels, manifest.method) == (["complaint", "praise"], "bitfit:bq")
    assert manifest.max_length == 9
    assert manifest.base.digest == base.spec.digest
    training = manifest.training
    told = {"task": "tone", "seed": 5, "steps": 3, "learning_rate": 2e-2, "validation": result.validation}
    told |= {"test": result.test, "dropout": {"hidden": 0.1, "attention": 0.1}}
    assert training.items() >= told.items()
    rows = {"train": 48, "validation": 20, "test": 12}
    assert (training["data"]["digest"], training["data"]["rows"]) == (data.digest, rows)
    assert "pairs" not in training["data"]
    pairs = {
        name: replace(split, texts=tuple((text, "and") for text in split.texts)) for name, split in data.splits.items()
    }
    assert run_of(base, replace(data, splits=pairs)).provenance()["data"]["pairs"] is True
    # Three layers of 32 numbers, and a classifier of 2 x 32 + 2.
    assert training["parameters"].items() >= {"delta": 96, "head": 66}.items()
    assert any("are cut to 9 tokens" in note for note in run.notes)


@pytest.fixture(scope="module")
def untested(data):
    """The rows without their test split, whose answers would be refused first."""
    return replace(data, splits={name: data.splits[name] for name in ("train", "validation")})


def test_a_score_that_is_no_number_is_one_line(base, untested):
    run = run_of(base, untested)
    state = State(run.init_values())
    state.kept_values = {name: value.detach() for name, value in state.values.items()}
    state.validation = {"accuracy": math.nan}
    with pytest.raises(InvalidManifest, match=r"^training: a number is not finite$"):
        finish(run, state, 0)


def test_what_cannot_be_trained_is_refused_before_the_first_step(base, data):
    with pytest.raises(InvalidManifest, match="labels"):
        run_of(base, replace(data, labels=("good\nbad", "other")))
    with pytest.raises(InvalidManifest, match="training: a text has half a surrogate pair"):
        run_of(base, replace(data, name="caf\udce9"))  # a folder's name that is not UTF-8


@pytest.mark.parametrize("method", ["bitfit", "lora:r=2", "random:10%", "diff-pruning:10%", "svd:r=2"])
def test_a_file_over_the_limit_is_refused_before_the_first_step(base, data, method, monkeypatch):
    run = run_of(base, data, method=method, max_steps=4)
    written = sum(tensor.nbytes for tensor in train(run).delta.tensors.values())
    # In half precision twice as many numbers fit.
    room = 2 * run.delta_parameters + 4 * run.head_parameters if method == "svd:r=2" else written
    assert written <= room
    monkeypatch.setattr("onebert_training.fit.run.MAX_FILE_BYTES", MAX_HEADER_BYTES + room)
    run_of(base, data, method=method)
    monkeypatch.setattr("onebert_training.fit.run.MAX_FILE_BYTES", MAX_HEADER_BYTES + room - 1)
    with pytest.raises(TooLarge, match="MiB of a file"):
        run_of(base, data, method=method)


@pytest.mark.parametrize(
    ("kind", "size"),
    # Of whole matrices: beyond half precision, its square beyond float32, no number.
    [("head.", 3e38), ("head.", math.inf), *(("whole.", size) for size in (1e10, 1e30, math.inf, math.nan))],
)
def test_what_no_file_can_hold_at_the_end_is_one_line(base, untested, kind, size):
    run = run_of(base, untested, method="svd:r=2")
    state = State(run.init_values())
    state.kept_values = {
        name: torch.full_like(value, size) if name.startswith(kind) else value for name, value in state.values.items()
    }
    with pytest.raises(NotFinite, match=r"^the answers are no longer numbers; try a smaller learning rate$"):
        finish(run, state, 0)
