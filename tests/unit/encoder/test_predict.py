"""Golden sequences and their tolerance."""

import numpy as np
import torch

from bases import Reference, far_row, far_task, tiny_base
from bases import loaded as base
from onebert_encoder.maths.predict import compute_golden, golden_tokens, golden_tolerance


def test_golden_sequences_are_fixed_and_fit_the_task() -> None:
    first, second = golden_tokens(base(), 32, "mean"), golden_tokens(base(), 32, "mean")
    assert [text.input_ids for text in first] == [text.input_ids for text in second]
    assert max(map(len, first)) == 32
    assert max(max(text.input_ids) for text in first) < base().config.vocab_size


def test_golden_logits_tell_tasks_apart_by_far_more_than_the_tolerance() -> None:
    first, other = (compute_golden(base(), far_row(base(), "bitfit", seed=seed), 48).logits for seed in (1, 2))
    gap = np.abs(np.array(first) - np.array(other)).max()
    assert gap > 3 * golden_tolerance(torch.bfloat16, first, [0.0, 0.0])
    assert gap > 100 * golden_tolerance(torch.float32, first, [0.0, 0.0])


def test_a_far_regression_is_held_as_tightly() -> None:
    near, far = [[0.5], [2.0]], [[1000.5], [1002.0]]
    assert golden_tolerance(torch.bfloat16, far, [1000.0]) == golden_tolerance(torch.bfloat16, near, [0.0])


def test_per_token_golden_logits_are_flat_short_and_the_plain_models() -> None:
    row, tensors = far_task(base(), "bitfit", "none", labels=3, seed=1)
    golden = compute_golden(base(), row, 48)
    reference = Reference(tiny_base("bert"), tensors, "none")
    assert [len(ids) for ids in golden.input_ids] == [4, 17]
    for ids, logits in zip(golden.input_ids, golden.logits, strict=True):
        np.testing.assert_allclose(logits, reference.logits(ids).flatten(), rtol=0, atol=1e-4)
    by_hand = [np.reshape(row, (-1, 3)) - tensors["head.bias"] for row in golden.logits]
    tolerance = golden_tolerance(torch.float32, golden.logits, tensors["head.bias"].tolist())
    assert tolerance == 1e-3 * max(1.0, float(max(np.abs(row).max() for row in by_hand)))
