"""Exact heads: the minimum of the penalized loss, found another way; labels without rows, columns of one kind."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_info, threadpool_limits

from onebert_training.data.examples import Split
from onebert_training.heads.exact import fit_heads
from onebert_training.tasks.objectives import OBJECTIVES

WIDTH = 5


def task(task_type, rows=40, labels=3, seed=0):
    """An objective with vectors far from zero, [rows, WIDTH], and targets that depend on them and on chance."""
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(rows, WIDTH)) * 3 + 7).astype(np.float32)
    outputs = vectors @ rng.normal(size=(WIDTH, labels)) + rng.normal(size=(rows, labels)) * 3
    outputs -= outputs.mean(axis=0)
    gold = {
        "single_label": outputs.argmax(axis=1),
        "token": outputs.argmax(axis=1),
        "multi_label": (outputs > 0).astype(np.float32),
        "regression": (100 + 20 * outputs[:, 0]).astype(np.float32),
    }[task_type]
    names = ("score",) if task_type == "regression" else tuple(map(str, range(labels)))
    return OBJECTIVES[task_type](names, Split(("text",) * rows, gold)), vectors, gold


def penalized(objective, vectors, gold, strength, weight, bias):
    """What an exact head minimizes, for a map of the centered vectors in their unit; float64 but for the loss."""
    scale = objective.target_scale
    outputs = (vectors @ weight.T + bias) * scale.spread + scale.mean
    # Of a per-token task each vector is a text of one word.
    per_word = isinstance(objective, OBJECTIVES["token"])
    rows, targets = (list(part.split(1) if per_word else part) for part in (outputs, torch.from_numpy(gold)))
    return gold.size * objective.loss(rows, targets) + strength / 2 * (weight**2).sum()


@pytest.mark.parametrize("strength", [3.0, 0.1, 0.01])
@pytest.mark.parametrize(
    ("task_type", "labels", "weighted"),
    [
        ("single_label", 3, False),
        ("single_label", 3, True),
        ("single_label", 2, False),
        ("single_label", 2, True),
        ("token", 3, False),
        ("multi_label", 3, False),
        ("multi_label", 3, True),
        ("multi_label", 1, False),
        ("regression", 1, False),
    ],
)
def test_it_is_the_minimum_that_another_optimizer_finds(task_type, labels, weighted, strength):
    objective, vectors, gold = task(task_type, labels=labels)
    if weighted:
        objective = objective.weighted(Split(("text",) * len(gold), gold))
    *_, head = fit_heads(objective, vectors, gold, [10 * strength, strength])
    centered = vectors - vectors.mean(axis=0, dtype=np.float64)
    unit = np.sqrt((centered**2).sum(axis=1).mean())
    scaled = torch.from_numpy(centered / unit)
    ours = [torch.from_numpy(head.weight * unit), torch.from_numpy(head.bias + head.weight @ vectors.mean(axis=0))]
    parameters = [torch.zeros_like(tensor, dtype=torch.float64, requires_grad=True) for tensor in ours]
    optimizer = torch.optim.LBFGS(parameters, max_iter=2000, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = penalized(objective, scaled, gold, strength, *parameters)
        value.backward()
        return value

    optimizer.step(closure)
    parameters = [tensor.detach() for tensor in parameters]
    least, reached = (float(penalized(objective, scaled, gold, strength, *tensor)) for tensor in (parameters, ours))
    # The fit ends at a gradient of 1e-5; what is lost by it is of second order.
    assert reached == pytest.approx(least, rel=1e-4)
    outputs = [scaled @ weight.double().T + bias.double() for weight, bias in (parameters, ours)]
    if task_type in ("single_label", "token"):
        outputs = [tensor.softmax(dim=1) for tensor in outputs]
    torch.testing.assert_close(*outputs, rtol=0.01, atol=0.01)


def test_a_teachers_probabilities_count_as_its_answers():
    for task_type in ("single_label", "multi_label"):
        objective, vectors, gold = task(task_type)
        soft = 0.2 + 0.6 * (np.eye(3)[gold] if task_type == "single_label" else gold)
        for first, other in zip(*(fit_heads(objective, vectors, given) for given in (gold, soft)), strict=True):
            assert np.array_equal(first.weight, other.weight)
            assert np.array_equal(first.bias, other.bias)


@pytest.mark.parametrize("present", [[2], [0, 2], [0, 2, 3]])
def test_a_label_without_rows_is_never_answered(present):
    objective = OBJECTIVES["single_label"](tuple("abcde"))
    gold = np.array([present[i % len(present)] for i in range(12)])
    vectors = np.random.default_rng(1).normal(size=(12, WIDTH)).astype(np.float32)
    elsewhere = 100 * np.random.default_rng(2).normal(size=(500, WIDTH)).astype(np.float32)
    for head in fit_heads(objective, vectors, gold):
        assert np.isfinite(head.weight).all()
        assert np.isfinite(head.bias).all()
        assert set(head.logits(elsewhere, objective.target_scale).argmax(axis=1).tolist()) <= set(present)


def test_rows_that_are_all_alike_are_answered_by_their_shares():
    objective = OBJECTIVES["single_label"](tuple("abc"))
    (head, *_) = fit_heads(objective, np.ones((4, WIDTH), dtype=np.float32), np.array([0, 1, 2, 2]))
    probabilities = torch.from_numpy(head.logits(np.ones(WIDTH, dtype=np.float32), objective.target_scale)).softmax(
        dim=0
    )
    assert probabilities.tolist() == pytest.approx([0.25, 0.25, 0.5], abs=1e-3)


@pytest.mark.parametrize(("task_type", "model"), [("single_label", LogisticRegression), ("regression", Ridge)])
def test_a_fit_multiplies_on_one_thread(task_type, model, monkeypatch):
    """On two threads the head of 65 tags took 234 seconds of a processor, on one 27."""

    def blas_threads():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    threads, fit = set(), model.fit

    def watched(*arguments):
        threads.update(blas_threads())
        return fit(*arguments)

    monkeypatch.setattr(model, "fit", watched)
    with threadpool_limits(2, user_api="blas"):
        fit_heads(*task(task_type), [1.0])
        assert blas_threads() == {2}
    assert threads == {1}
