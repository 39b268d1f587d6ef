"""What the frozen base alone gives: vectors, baselines, and the head that `--method head` writes."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from bases import Reference, tiny_base
from onebert_store.errors import InvalidMethod, InvalidSettings, NotFinite
from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT
from onebert_training.data.examples import Split
from onebert_training.data.splitting import fold_of
from onebert_training.fit import inputs
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import ignore, train, train_together
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.heads.exact import STRENGTHS, fit_heads, labeled_vectors
from onebert_training.methods.methods import parse_method
from trainings import short_run

run_of = partial(short_run, settings=Settings(method="head"))


def identity(base):
    """A head that hands on what it reads."""
    width = base.spec.hidden_size
    return {HEAD_WEIGHT: np.eye(width, dtype=np.float32), HEAD_BIAS: np.zeros(width, dtype=np.float32)}


def undivided(data):
    """The data as a head alone reads them: nothing is held out."""
    return replace(data, splits={"train": data.splits["train"].joined(data.splits["validation"])})


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_vectors_are_what_the_plain_model_pools(base, data, pooling):
    run = run_of(base, data, pooling=pooling)
    seen = run.inputs.frozen.head_inputs("validation", pooling)
    model = Reference(tiny_base("bert"), identity(base), pooling)
    pooled = np.stack([model.logits(text.input_ids, text.type_ids).numpy() for text in seen.tokens])
    # float32 sums in another order
    assert np.stack(seen.vectors) == pytest.approx(pooled, abs=1e-5)


def test_the_baselines_are_what_their_answers_score(base, data):
    run = run_of(base, data)
    baselines = run.baselines
    for split in ("validation", "test"):
        gold = data.splits[split].gold
        commonest = np.bincount(data.splits["train"].gold).argmax()
        assert baselines.constant.scores[split]["accuracy"] == np.mean(gold == commonest)
        measured = run.evaluate(run.model(run.with_head(run.init_values(), baselines.head)), split)
        assert measured.scores == baselines.exact.scores[split]
    assert baselines.answers.scores == baselines.exact.scores["validation"]


def test_validation_chooses_the_strength_by_score_and_loss_and_is_not_fitted_on(base, data):
    run = run_of(base, data)
    trained, validation = (run.inputs.frozen.head_inputs(split, "mean") for split in ("train", "validation"))
    heads = fit_heads(run.objective, *labeled_vectors(trained.vectors, trained.targets))
    gold = torch.from_numpy(data.splits["validation"].gold)
    outputs = [
        torch.from_numpy(head.logits(np.stack(validation.vectors), run.objective.target_scale)) for head in heads
    ]
    ranks = [
        (float((rows.argmax(1) == gold).float().mean()), -float(torch.nn.functional.cross_entropy(rows, gold)))
        for rows in outputs
    ]
    best = ranks.index(max(ranks))
    assert run.baselines.head.strength == STRENGTHS[best]
    result = train(run)
    assert result.delta.tensors[HEAD_WEIGHT].tolist() == heads[best].weight.tolist()
    assert result.validation["accuracy"] == pytest.approx(ranks[best][0])


def test_rows_that_were_held_out_are_fitted_on_and_cross_validated(base, data):
    run = run_of(base, undivided(data))
    apart = run_of(base, data).inputs.frozen
    first, other = apart.head_inputs("train", "mean"), apart.head_inputs("validation", "mean")
    vectors, gold = labeled_vectors([*first.vectors, *other.vectors], [*first.targets, *other.targets])
    fold = fold_of(first.examples.joined(other.examples), "single_label", 5, 20240601)
    assert set(fold.tolist()) == set(range(5))
    solved, _ = run.inputs.frozen.solve(run.objective, "mean", "accuracy")
    place = STRENGTHS.index(solved.head.strength)
    right = []
    for first in range(5):
        heads = fit_heads(run.objective, vectors[fold != first], gold[fold != first])
        outputs = heads[place].logits(vectors[fold == first], run.objective.target_scale)
        right += (outputs.argmax(axis=1) == gold[fold == first]).tolist()
    assert len(right) == 68
    assert solved.answers.scores["accuracy"] == np.mean(right)
    (head,) = fit_heads(run.objective, vectors, gold, [solved.head.strength])
    result = train(run)
    assert result.delta.tensors[HEAD_WEIGHT] == pytest.approx(head.weight, abs=1e-4)
    assert result.validation == solved.answers.scores
    # And nobody takes them for scores on the rows that were held out.
    assert (result.folds, result.delta.manifest.training["folds"]) == (5, 5)


def test_a_fold_has_every_label():
    gold = np.array([i % 4 for i in range(40)])
    fold = fold_of(Split(tuple(map(str, range(40))), gold), "single_label", 5, 0)
    assert all(set(gold[fold == number].tolist()) == set(range(4)) for number in range(5))


def test_more_rows_than_a_baseline_reads_are_drawn_and_the_head_is_fitted_on_all(base, tags, monkeypatch):
    monkeypatch.setattr(inputs, "MOST_VECTORS", 60)
    run = run_of(base, tags)
    assert run.baselines.head is not None
    seen = run.inputs.frozen.head_inputs("train", "none")
    (whole,) = fit_heads(run.objective, *labeled_vectors(seen.vectors, seen.targets), [run.baselines.head.strength])
    result = train(run)
    written = result.delta.tensors[HEAD_WEIGHT]
    assert result.validation["token_accuracy"] > 0.9
    assert written == pytest.approx(whole.weight, abs=1e-4)
    assert written != pytest.approx(run.baselines.head.weight, abs=1e-4)


class Counted(list):
    """A list that knows which of its items were asked for."""

    def __init__(self, items):
        super().__init__(items)
        self.asked = set()

    def __getitem__(self, place):
        self.asked.add(place)
        return super().__getitem__(place)


@pytest.mark.parametrize(
    ("changes", "texts"),
    # A quarter of the texts of all steps; at least 300; all where steps pay for them, and where no step is planned.
    [
        ({"max_steps": 100, "batch_size": 16}, 400),
        ({"max_steps": 3}, 300),
        ({"epochs": 2}, 480),
        ({"epochs": 5}, 960),
        ({"method": "head"}, 960),
    ],
)
def test_what_is_read_before_the_first_step_is_a_quarter_of_what_the_steps_read(base, data, changes, texts):
    split = data.splits["train"]
    many = Split(tuple(f"{text} {i}" for i in range(20) for text in split.texts), np.tile(split.gold, 20))
    task = TaskInputs(base, replace(data, splits={**data.splits, "train": many}), 40)
    tokens = task.splits["train"].tokens = Counted(task.splits["train"].tokens)
    run = Run(task, Settings(**changes), "tone")
    assert run.baselines.facts()["head"]["rows"] == texts
    assert len(tokens.asked) == texts
    # The same is not looked for again by a run that plans as much, whatever it trains.
    again = replace(run.settings, method="layernorm")
    assert Run(task, again, "tone").baselines is run.baselines


def test_what_has_no_exact_head_is_refused(base, questions):
    with pytest.raises(InvalidSettings, match="a span task has no exact head; frozen trains the head alone by steps"):
        run_of(base, questions)
    with pytest.raises(InvalidMethod, match="reinit takes a method that trains by steps"):
        parse_method("reinit+head")


def test_a_base_whose_vectors_are_not_finite_is_said(base, data):
    broken = base.with_params({"embeddings.LayerNorm.weight": torch.full((base.spec.hidden_size,), torch.nan)})
    with pytest.raises(NotFinite, match="the base's vectors are not finite numbers"):
        train(run_of(broken, data))
    task = TaskInputs(broken, data, 40)
    runs = [Run(task, Settings(start=start, max_steps=1), "tone") for start in ("head", "fresh")]
    # One that cannot start ends no other one.
    ended = dict(train_together(runs, 2, ignore, lambda _: None))
    assert set(ended) == set(runs)
    assert ended[runs[0]].detail == "the base's vectors are not finite numbers"
