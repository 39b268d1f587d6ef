"""A delta trained by contrast: the loss is the paper's, batches are even, the file is the method's."""

from dataclasses import replace
from functools import partial
from math import exp, log

import numpy as np
import pytest
import torch

from bases import Reference, tiny_base
from onebert_training.fit.loop import train
from onebert_training.fit.settings import Settings
from onebert_training.selection.contrastive import ContrastiveRun, contrast
from onebert_training.selection.few import fold_runs, out_of_fold
from trainings import short_run

SETTINGS = Settings(learning_rate=5e-3, max_steps=40)


@pytest.fixture(scope="module")
def few(data):
    return replace(data, splits={name: data.splits[name] for name in ("train", "test")})


run_of = partial(short_run, settings=SETTINGS, kind=ContrastiveRun)


def of_the_paper(vectors, gold, temperature):
    """Equation 2 of Khosla et al. 2020 (L_out), row by row, for the rows that have another one of their label."""
    z = [vector / np.linalg.norm(vector) for vector in vectors]
    losses = []
    for i, label in enumerate(gold):
        others = [a for a in range(len(gold)) if a != i]
        alike = [p for p in others if gold[p] == label]
        if alike:
            total = sum(exp(z[i] @ z[a] / temperature) for a in others)
            losses.append(-sum(log(exp(z[i] @ z[p] / temperature) / total) for p in alike) / len(alike))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("gold", [[0, 0, 1, 1, 1], [0, 1, 0, 2, 3], [2, 2, 2, 2, 2]])
def test_the_loss_is_that_of_the_paper(gold):
    vectors = np.random.default_rng(0).standard_normal((5, 8))
    got = contrast(torch.from_numpy(vectors), torch.tensor(gold), 0.2)
    assert got.item() == pytest.approx(of_the_paper(vectors, gold, 0.2), rel=1e-5)


def test_a_batch_has_equally_many_rows_of_each_label(base, few):
    train_split = few.splits["train"]
    rare = np.flatnonzero(train_split.gold == 0)[:9]
    uneven = train_split.take(np.sort(np.concatenate([rare, np.flatnonzero(train_split.gold == 1)])))
    run = run_of(base, replace(few, splits={**few.splits, "train": uneven}))
    drawn = [run.batch_at(step) for step in range(20)]
    for rows in drawn:
        assert len(set(rows.tolist())) == len(rows)
        assert np.bincount(uneven.gold[rows]).tolist() == [8, 8]
    assert {row for rows in drawn for row in rows.tolist()} == set(range(len(uneven)))
    assert np.array_equal(drawn[3], run.batch_at(3))


def test_what_it_scores_is_what_its_file_scores_in_the_plain_model(base, few):
    run = run_of(base, few)
    result = train(run)
    model = Reference(tiny_base("bert"), {name: array.copy() for name, array in result.delta.tensors.items()}, "mean")
    tokens = run.inputs.splits["test"].tokens
    logits = np.stack([model.logits(text.input_ids, text.type_ids).numpy() for text in tokens])
    assert np.mean(logits.argmax(axis=1) == few.splits["test"].gold) == pytest.approx(result.test["accuracy"])


def test_its_folds_are_trained_by_contrast_too(base, few):
    runs = fold_runs(run_of(base, few))
    assert all(isinstance(run, ContrastiveRun) for run in runs)
    logits = np.stack(out_of_fold(runs).logits)
    assert logits.shape == (48, 2)
    assert np.mean(logits.argmax(axis=1) == few.splits["train"].gold) >= 0.8
