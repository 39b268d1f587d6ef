"""Heads of every shape in one batch, and per-token logits of mixed batches, against plain products and plain models."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch

from bases import Reference, as_read, far_delta, random_texts, tiny_base, torch_tensors
from bases import loaded as base
from batches import heads_of, logits_of, packed
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.heads import classify
from onebert_encoder.maths.rows import Head, Rows, diverges_at, stack_rows
from onebert_encoder.text.tokens import Tokens

# The tolerance of tests/integration/exactness/test_exactness.py, which gives the reason.
TOLERANCE = 1e-4
TASKS = [
    *(("none", kind) for kind in ("bitfit", "frozen", "spafit", "layernorm", "lora")),
    *(("mean", "bitfit"), ("cls", "frozen"), ("mean", "spafit"), ("cls", "lora")),
    *(("siamese", "bitfit"), ("siamese", "frozen"), ("siamese", "everything")),
]
EPS = 1e-12
# Tasks with a layer of their own, by their numbers in `TASKS`: its activation, and whether a LayerNorm follows.
LAYERS = {0: ("tanh", False), 1: ("gelu", True), 5: ("gelu", True), 6: ("relu", False), 7: ("tanh", True)}


@dataclass(frozen=True)
class Zoo:
    """Token tasks and tasks on sequences, folded, each with its plain model; row 0 is the bare base."""

    rows: Rows
    references: list[Reference]
    parts: list[int]


@cache
def zoo(family: str) -> Zoo:
    bare = fold(base(family), {})
    rows, references = [bare], []
    for seed, (pooling, kind) in enumerate(TASKS):
        tensors = far_delta(base(family).spec, kind, pooling, labels=2 + seed % 3, seed=seed)
        activation, has_norm = LAYERS.get(seed, ("", False))
        if activation:
            rng = np.random.default_rng(seed)
            tensors["head.dense.weight"] = rng.normal(0, 0.3, (32, 32)).astype(np.float32)
            tensors["head.dense.bias"] = rng.normal(0, 0.3, 32).astype(np.float32)
        if has_norm:
            tensors["head.norm.weight"] = rng.normal(1, 0.3, 32).astype(np.float32)
        references.append(Reference(tiny_base(family), tensors, pooling, activation or "tanh"))
        rows.append(fold(base(family), torch_tensors(tensors), pooling, activation or "tanh"))
    return Zoo(stack_rows(base(family), rows), references, [diverges_at(row, bare, base(family)) for row in rows])


def texts_of(count: int, seed: int) -> list[Tokens]:
    return random_texts(np.random.default_rng(seed).integers(1, 40, count).tolist(), seed)


def check(family: str, texts: list[Tokens], rows: list[int], share: bool) -> None:
    z = zoo(family)
    texts = [as_read(text, TASKS[row - 1][0]) for text, row in zip(texts, rows, strict=True)]
    parts = [z.parts[row] for row in rows] if share else None
    with torch.inference_mode():
        ours = logits_of(base(family), z.rows, packed(base(family), texts, rows, parts))
    for text, row, logits in zip(texts, rows, ours, strict=True):
        wanted = z.references[row - 1].logits(text.input_ids, text.type_ids, text.second)
        assert wanted.dim() == 1 + (TASKS[row - 1][0] == "none")
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert", "electra", "modernbert", "eurobert"])
def test_logits_of_mixed_batches_are_the_plain_models(family: str) -> None:
    rng = np.random.default_rng(0)
    check(family, texts_of(40, seed=1), rng.integers(1, len(TASKS) + 1, 40).tolist(), share=False)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_logits_of_texts_that_go_to_many_tasks_are_the_plain_models(family: str) -> None:
    """Shared layers: the batch has a stage for each layer where a task leaves the base, and filling in each."""
    texts = texts_of(3, seed=2)
    rows = list(range(1, len(TASKS) + 1))
    check(family, [text for text in texts for _ in rows], rows * 3, share=True)
    only_tokens = [row for row in rows if TASKS[row - 1][0] == "none"]
    check(family, [texts[0]] * len(only_tokens), only_tokens, share=True)


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
    own = dict(reference.model.named_parameters())
    for name, leaf in leaves.items():
        plain = reference.tensors[name].grad if name.startswith("head.") else own[name.removeprefix("delta.")].grad
        assert leaf.grad is not None or ".key." in name  # whose bias cancels in the softmax
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, plain, rtol=1e-3, atol=2e-4, msg=name)


def test_many_labels_and_many_tasks_take_one_product_a_task_with_the_same_answers() -> None:
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
        logits = classify(heads_of(some), replace(batch, first=places, inputs=places), pooled, EPS).split()
        for head, x, got in zip(some, pooled, logits, strict=False):
            torch.testing.assert_close(got, head.weight @ x + head.bias, rtol=0, atol=1e-4)
