"""Answers from logits, against scipy; golden sequences; heads of every shape in one batch."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from bases import far_delta, manifest_for, tiny_base
from onebert_encoder.base import Base, load_base
from onebert_encoder.batch import pack
from onebert_encoder.fold import Head, fold
from onebert_encoder.heads import classify
from onebert_encoder.predict import answer, compute_golden, golden_tokens, golden_tolerance
from onebert_encoder.tokens import Tokens
from onebert_store.manifest import Manifest, parse_manifest


@cache
def base() -> Base:
    return load_base(str(tiny_base("bert")))


def manifest(task_type: str, labels: int) -> Manifest:
    return parse_manifest(manifest_for(base().spec, labels=labels, task_type=task_type))


LOGITS = np.array([0.3, -2.0, 4.5, 1.0], np.float32)


def test_single_label_scores_are_the_softmax_highest_first() -> None:
    got = answer(LOGITS, manifest("single_label", 4))
    wanted = softmax(LOGITS.astype(np.float64))
    assert (got.label, list(got.scores)) == ("label 2", ["label 2", "label 3", "label 0", "label 1"])
    assert got.scores == pytest.approx({f"label {i}": value for i, value in enumerate(wanted)})
    assert got.score == got.scores["label 2"]
    assert got.labels is None


def test_multi_label_scores_are_sigmoids_and_labels_are_those_over_one_half() -> None:
    got = answer(LOGITS, manifest("multi_label", 4))
    assert got.scores == pytest.approx({f"label {i}": value for i, value in enumerate(expit(LOGITS))})
    assert got.labels == ["label 2", "label 3", "label 0"]


def test_a_regression_answers_the_plain_value() -> None:
    got = answer(np.array([3.25], np.float32), manifest("regression", 1))
    assert (got.label, got.score, got.scores, got.labels) == ("label 0", 3.25, {"label 0": 3.25}, None)


def test_top_k_cuts_the_scores_and_nothing_else() -> None:
    got = answer(LOGITS, manifest("multi_label", 4), top_k=1)
    assert list(got.scores) == ["label 2"]
    assert got.labels == ["label 2", "label 3", "label 0"]


def test_extreme_logits_do_not_overflow() -> None:
    extreme = np.array([-1e4, 1e4], np.float32)
    assert answer(extreme, manifest("single_label", 2)).scores == {"label 1": 1.0, "label 0": 0.0}
    assert answer(extreme, manifest("multi_label", 2)).scores == {"label 1": 1.0, "label 0": 0.0}


def test_golden_sequences_are_fixed_and_fit_the_task() -> None:
    first, second = golden_tokens(base(), 32), golden_tokens(base(), 32)
    assert [text.input_ids for text in first] == [text.input_ids for text in second]
    assert max(map(len, first)) == 32
    assert max(max(text.input_ids) for text in first) < base().config.vocab_size


def test_golden_logits_tell_tasks_apart_by_far_more_than_the_tolerance() -> None:
    rows = []
    for seed in (1, 2):
        tensors = far_delta(base().spec, "bitfit", "mean", labels=2, seed=seed)
        rows.append(fold(base(), {name: torch.from_numpy(value) for name, value in tensors.items()}, "mean"))
    one, other = (compute_golden(base(), row, 48).logits for row in rows)
    gap = np.abs(np.array(one) - np.array(other)).max()
    assert gap > 3 * golden_tolerance(torch.bfloat16, one, [0.0, 0.0])
    assert gap > 100 * golden_tolerance(torch.float32, one, [0.0, 0.0])


def test_a_regression_far_from_zero_is_held_as_tightly_as_one_near_it() -> None:
    near, far = [[0.5], [2.0]], [[1000.5], [1002.0]]
    assert golden_tolerance(torch.bfloat16, far, [1000.0]) == golden_tolerance(torch.bfloat16, near, [0.0])


def test_many_labels_and_many_tasks_take_one_product_a_task_with_the_same_answers() -> None:
    """Over the bound on copied weights the other branch answers; both are the plain product."""
    generator = torch.Generator().manual_seed(0)
    heads = [
        Head(False, (), torch.randn(5000, 32, generator=generator), torch.randn(5000, generator=generator))
        for _ in range(3)
    ]
    chosen = [heads[i % 3] for i in range(30)]
    pooled = torch.randn(30, 32, generator=generator)
    batch = pack(base(), [Tokens([5], [0])] * 30, [1] * 30)
    for some in (chosen[:6], chosen):
        logits = classify(some, replace(batch, first=batch.first[: len(some)] * 0 + torch.arange(len(some))), pooled)
        for head, x, got in zip(some, pooled, logits, strict=False):
            torch.testing.assert_close(got, head.weight @ x + head.bias, rtol=0, atol=1e-4)
