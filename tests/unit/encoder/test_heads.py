"""Gradients of heads on tokens and on pairs, and heads of many labels, against plain models and products."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bases import Reference, as_read, far_delta, random_texts, tiny_base
from bases import loaded as base
from batches import heads_of, logits_of, packed
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.heads import classify
from onebert_encoder.maths.rows import Head, stack_rows
from onebert_encoder.text.tokens import Tokens


def texts_of(count: int, seed: int) -> list[Tokens]:
    return random_texts(np.random.default_rng(seed).integers(1, 40, count).tolist(), seed)


@pytest.mark.parametrize("pooling", ["none", "siamese"])
def test_gradients_of_tokens_and_of_pairs_are_the_plain_models(pooling: str) -> None:
    values = far_delta(base().spec, "bitfit", pooling, labels=3, seed=4)
    leaves = {name: torch.from_numpy(value).requires_grad_() for name, value in values.items()}
    texts = [as_read(text, pooling) for text in texts_of(5, seed=3)]
    ours = logits_of(base(), stack_rows(base(), [fold(base(), leaves, pooling)]), packed(base(), texts, [0] * 5))
    weights = [torch.randn(logits.shape, generator=torch.Generator().manual_seed(5)) for logits in ours]
    torch.stack([(w * logits).sum() for w, logits in zip(weights, ours, strict=True)]).sum().backward()
    reference = Reference(tiny_base("bert"), values, pooling)
    for tensor in reference.tensors.values():
        tensor.requires_grad_()
    theirs = [
        reference.differentiable_siamese_logits(text.input_ids[: text.second], text.input_ids[text.second :])
        if text.second
        else reference.differentiable_logits(text.input_ids, text.type_ids)
        for text in texts
    ]
    torch.stack([(w * logits).sum() for w, logits in zip(weights, theirs, strict=True)]).sum().backward()
    parameters = dict(reference.model.named_parameters())
    for name, leaf in leaves.items():
        plain = (
            reference.tensors[name].grad if name.startswith("head.") else parameters[name.removeprefix("delta.")].grad
        )
        assert leaf.grad is not None or ".key." in name  # whose bias cancels in the softmax
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, plain, rtol=1e-3, atol=2e-4, msg=name)


def test_many_labels_take_one_product_a_task() -> None:
    """Above and below the bound on copied weights, logits are those of the plain product."""
    generator = torch.Generator().manual_seed(0)
    heads = [
        Head("cls", (), torch.randn(5000, 32, generator=generator), torch.randn(5000, generator=generator))
        for _ in range(3)
    ]
    chosen = [heads[i % 3] for i in range(30)]
    pooled = torch.randn(30, 32, generator=generator)
    batch = packed(base(), [Tokens([5], [0])] * 30, [1] * 30)
    for some in (chosen[:6], chosen):
        places = np.arange(len(some))
        logits = classify(heads_of(some), replace(batch, first=places, inputs=places), pooled, 1e-12).split()
        for head, x, got in zip(some, pooled, logits, strict=False):
            torch.testing.assert_close(got, head.weight @ x + head.bias, rtol=0, atol=1e-4)
