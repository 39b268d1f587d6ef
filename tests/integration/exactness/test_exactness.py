"""The heart: answers of mixed, unpadded batches against the plain Hugging Face model with each task's weights, alone.

float32 tolerances: logits here are of order 1 to 5 and pass a few hundred roundings of relative size 6e-8, which gives
differences around 1e-6; 1e-4 leaves room for other machines' kernels and is far below any wrong term, since every
difference in these deltas is as large as the base's own parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from bases import FAMILIES, Reference, as_read, far_delta, tiny_base, torch_tensors
from batches import logits_of, packed
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.maths.fold import expand_cores, fold
from onebert_encoder.maths.rows import Rows, diverges_at, stack_rows
from onebert_encoder.text.tokens import Tokens

KINDS = (
    *("frozen", "bitfit", "layernorm", "gains", "lora", "spafit", "sparse", "adapter", "scale", "output-scale"),
    *("lora-xs", "everything"),
)
# Kinds whose heads have a layer of their own: its activation, and whether a LayerNorm follows.
LAYERS = {"frozen": ("gelu", True), "bitfit": ("relu", False), "layernorm": ("tanh", True), "lora": ("gelu", False)}
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Zoo:
    """Tasks of every kind and pooling on one base, folded, and the reference of each; row 0 is the bare base."""

    base: Base
    rows: Rows
    references: list[Reference]
    parts: list[int]

    @property
    def tasks(self) -> range:
        return range(1, len(self.references) + 1)

    def reference(self, row: int, text: Tokens) -> Tensor:
        text = as_read(text, self.references[row - 1].pooling)
        return self.references[row - 1].logits(text.input_ids, text.type_ids, text.second)

    def answers(self, texts: list[Tokens], rows: list[int], share: bool = False, plain: bool = False) -> list[Tensor]:
        """With the fast kernels where this machine has some, or with the plain ones, which gradients need."""
        parts = [self.parts[row] for row in rows] if share else None
        texts = [as_read(text, self.references[row - 1].pooling) for text, row in zip(texts, rows, strict=True)]
        with torch.enable_grad() if plain else torch.inference_mode():
            return logits_of(self.base, self.rows, packed(self.base, texts, rows, parts))


@cache
def plain_tasks(family: str) -> list[tuple[dict[str, np.ndarray], str, Reference]]:
    """The tensors and activation of each task of a zoo with the model that it must equal, the same for every dtype."""
    base, made = load_base(str(tiny_base(family))), []
    for pooling in (*base.spec.poolings, "none"):
        for kind in KINDS:
            seed, h = len(made) + 1, base.spec.hidden_size
            tensors, rng = (
                far_delta(base.spec, kind, pooling, labels=2 + seed % 4, seed=seed),
                np.random.default_rng(seed),
            )
            layered = kind in LAYERS and pooling in ("none", "mean")
            activation, has_norm = LAYERS[kind] if layered else ("tanh", False)
            if layered:
                tensors["head.dense.weight"] = rng.normal(0, 0.3, (h, h)).astype(np.float32)
                tensors["head.dense.bias"] = rng.normal(0, 0.3, h).astype(np.float32)
                if has_norm:
                    tensors["head.norm.weight"] = rng.normal(1, 0.3, h).astype(np.float32)
            made.append((tensors, activation, Reference(tiny_base(family), tensors, pooling, activation)))
    return made


@cache
def zoo(family: str, dtype: torch.dtype = torch.float32) -> Zoo:
    base = load_base(str(tiny_base(family)), dtype=dtype)
    bare, tasks = fold(base, {}), plain_tasks(family)
    rows = [
        bare,
        *(fold(base, torch_tensors(tensors), model.pooling, activation) for tensors, activation, model in tasks),
    ]
    parts = [diverges_at(row, bare, base) for row in rows]
    return Zoo(base, stack_rows(base, rows), [reference for _, _, reference in tasks], parts)


def random_texts(base: Base, count: int, seed: int) -> list[Tokens]:
    """Sequences of 1 to 60 tokens, the second half of each in the second segment where the family has segments."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 61, count).tolist()
    return [
        Tokens(
            rng.integers(5, base.config.vocab_size, length).tolist(),
            [int(i > length // 2 and base.config.type_vocab_size > 1) for i in range(length)],
        )
        for length in lengths
    ]


def largest_difference(ours: list[Tensor], wanted: list[Tensor]) -> float:
    assert [a.shape for a in ours] == [b.shape for b in wanted]
    return max(float((a - b).abs().max()) for a, b in zip(ours, wanted, strict=True))


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_in_one_mixed_batch_equals_the_plain_model(family: str, plain: bool) -> None:
    z = zoo(family)
    rows = list(z.tasks) * 3
    texts = random_texts(z.base, len(rows), seed=1)
    wanted = [z.reference(row, text) for row, text in zip(rows, texts, strict=True)]
    assert max(float(logits.abs().max()) for logits in wanted) > 1
    assert largest_difference(z.answers(texts, rows, plain=plain), wanted) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_answers_the_same_alone_and_among_63_neighbours(family: str) -> None:
    z = zoo(family)
    rng = np.random.default_rng(2)
    texts = random_texts(z.base, 64, seed=3)
    rows = rng.choice(list(z.tasks), 64).tolist()
    crowd = z.answers(texts, rows)
    alone = [z.answers([text], [row])[0] for text, row in zip(texts, rows, strict=True)]
    # The same sums in another order: rounding only.
    assert largest_difference(crowd, alone) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_sharing_the_lower_layers_of_one_text_changes_nothing(family: str) -> None:
    z = zoo(family)
    text, other = random_texts(z.base, 2, seed=4)
    rows = list(z.tasks)
    texts = [text] * len(rows) + [other]
    shared = z.answers(texts, [*rows, rows[0]], share=True)
    wanted = [z.reference(row, text) for row in rows] + [z.reference(rows[0], other)]
    assert len(set(z.parts[1:])) == 3
    assert largest_difference(shared, wanted) < TOLERANCE


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e38])
def test_a_delta_that_is_not_finite_never_touches_a_neighbour(poison: float) -> None:
    z = zoo("bert")
    broken = far_delta(z.base.spec, "everything", "mean", labels=3, seed=9)
    for name, value in broken.items():
        if not name.startswith(("head", "sparse_index")):
            value.flat[0] = poison
    bad_row = fold(z.base, torch_tensors(broken), "mean")
    good = [fold(z.base, (task := z.references[row - 1]).tensors, task.pooling) for row in (2, 5)]
    rows = stack_rows(z.base, [fold(z.base, {}), *good, bad_row])
    texts = random_texts(z.base, 48, seed=5)
    which = [1, 3, 2] * 16
    with torch.inference_mode():
        got = logits_of(z.base, rows, packed(z.base, texts, which))
    assert not all(torch.isfinite(logits).all() for logits, row in zip(got, which, strict=True) if row == 3)
    for logits, row, text in zip(got, which, texts, strict=True):
        if row != 3:
            assert float((logits - z.reference({1: 2, 2: 5}[row], text)).abs().max()) < TOLERANCE


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_within_its_rounding(family: str, plain: bool) -> None:
    # bfloat16 keeps 8 bits: relative 2^-9 per rounding, some ten roundings a layer on values of order 1 to 3 give
    # hundredths on a logit; a wrong or missing term moves logits by about 1.
    z, exact = zoo(family, torch.bfloat16), zoo(family)
    rows = list(z.tasks) * 2
    texts = random_texts(z.base, len(rows), seed=6)
    differences = [
        float((a - b).abs().max() / max(1.0, float(b.abs().max())))
        for a, b in zip(z.answers(texts, rows, plain=plain), exact.answers(texts, rows), strict=True)
    ]
    assert np.median(differences) < 0.03
    assert max(differences) < 0.15


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_the_folded_biases_are_the_plain_models(family: str) -> None:
    """Training goes through fold and encode: its gradient is that of the plain model with the same parts."""
    base = load_base(str(tiny_base(family)))
    values = far_delta(base.spec, "everything", "mean", labels=3, seed=11)
    leaves = torch_tensors(values)
    for name, leaf in leaves.items():
        leaf.requires_grad_(not name.startswith("sparse_index"))
    texts = random_texts(base, 6, seed=7)
    rows = stack_rows(base, [fold(base, leaves, "mean")])
    ours = logits_of(base, rows, packed(base, texts, [0] * len(texts)))
    weights = [torch.sin(torch.arange(3.0) + i) for i in range(len(texts))]
    torch.stack([(w * logits).sum() for w, logits in zip(weights, ours, strict=True)]).sum().backward()

    reference = Reference(tiny_base(family), values, "mean")
    parameters = dict(reference.model.named_parameters())
    hooked = [name for name in values if name.startswith(("adapter", "scale", "output_scale"))]
    for name in hooked:
        reference.tensors[name].requires_grad_()
    theirs = [reference.differentiable_logits(text.input_ids, text.type_ids) for text in texts]
    torch.stack([(w * logits).sum() for w, logits in zip(weights, theirs, strict=True)]).sum().backward()
    for parameter in base.anatomy.parameters:
        if parameter.symbol == "b_p":
            continue
        got, want = leaves[f"delta.{parameter.name}"].grad, parameters[parameter.name].grad
        if parameter.symbol == "b_k" and base.anatomy.family.scores in ("none", "relative"):
            # It cancels in the softmax: folding drops it, the plain model's gradient is rounding.
            got = torch.zeros(parameter.shape)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-4, msg=parameter.name)
    assert_gradients_of_weights(base, leaves, parameters)
    for name in hooked:
        torch.testing.assert_close(leaves[name].grad, reference.tensors[name].grad, rtol=1e-3, atol=2e-4, msg=name)
    assert all(not value.requires_grad for value in base.params.values())


def assert_gradients_of_weights(
    base: Base, leaves: dict[str, Tensor], parameters: dict[str, torch.nn.Parameter]
) -> None:
    """Those of low-rank, LoRA-XS and sparse leaves follow from the plain model's gradient of the whole weight."""
    for module in base.anatomy.modules:
        A = leaves.get(f"lora_A.{module.name}")
        if A is not None:
            B, full = leaves[f"lora_B.{module.name}"], parameters[f"{module.name}.weight"].grad
            torch.testing.assert_close(A.grad, B.detach().T @ full, rtol=1e-3, atol=2e-4)
            torch.testing.assert_close(B.grad, full @ A.detach().T, rtol=1e-3, atol=2e-4)
        core = leaves.get(f"lora_xs.{module.name}")
        if core is not None:
            (left, right), full = (
                base.subspaces.factors(module.name, len(core)),
                parameters[f"{module.name}.weight"].grad,
            )
            torch.testing.assert_close(core.grad, left.T @ full @ right.T, rtol=1e-3, atol=2e-4)
        places = leaves.get(f"sparse_index.{module.name}")
        if places is not None:
            full = parameters[f"{module.name}.weight"].grad.view(-1)[places]
            torch.testing.assert_close(leaves[f"sparse_value.{module.name}"].grad, full, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_cores_learn_as_their_low_rank_twins(family: str) -> None:
    """The twins have matrices of their own, U Σ R and Vᵀ written out for every run."""
    base = load_base(str(tiny_base(family)))
    kinds = ("lora-xs", "lora", "lora-xs", "adapter", "lora-xs", "bitfit")
    drawn = [torch_tensors(far_delta(base.spec, kind, "mean", labels=3, seed=seed)) for seed, kind in enumerate(kinds)]
    leaves = [
        {name: first.requires_grad_() for name, first in tensors.items() if name.startswith("lora_xs")}
        for tensors in drawn
    ]
    texts, of_text = random_texts(base, 18, seed=8), [i % len(kinds) for i in range(18)]

    def learned(make: Callable[[Base, dict[str, Tensor]], dict[str, Tensor]]) -> tuple[Tensor, list[Tensor]]:
        rows = stack_rows(base, [fold(base, make(base, tensors), "mean") for tensors in drawn])
        logits = torch.stack(logits_of(base, rows, packed(base, texts, of_text)))
        loss = (logits * torch.sin(torch.arange(logits.numel())).view_as(logits)).sum()
        return logits, list(torch.autograd.grad(loss, [leaf for leave in leaves for leaf in leave.values()]))

    ours, twins = learned(lambda _, tensors: tensors), learned(expand_cores)
    torch.testing.assert_close(ours[0], twins[0], rtol=0, atol=TOLERANCE)
    assert len({len(leaf) for leave in leaves for leaf in leave.values()}) > 2
    for first, other in zip(ours[1], twins[1], strict=True):
        torch.testing.assert_close(first, other, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("family", ["modernbert", "gte", "nomic_bert", "eurobert", "deberta-v2"])
def test_texts_of_any_length_around_the_window_and_up_to_the_longest(family: str) -> None:
    """ModernBERT's local layers see 64 tokens to each side: 65 tokens see each other, 66 do not."""
    z, rng = zoo(family), np.random.default_rng(9)
    lengths = [1, 2, 63, 64, 65, 66, 129, 130, 513, z.base.config.max_length]
    rows = list(z.tasks)[::2]
    texts = [Tokens(rng.integers(5, 60, n).tolist(), [0] * n) for n in np.resize(lengths, len(rows)).tolist()]
    crowd = z.answers(texts, rows)
    assert (
        largest_difference(crowd, [z.reference(row, text) for row, text in zip(rows, texts, strict=True)]) < TOLERANCE
    )
    alone = [z.answers([text], [row])[0] for text, row in zip(texts, rows, strict=True)]
    assert largest_difference(crowd, alone) < 1e-5


def test_long_sequences_take_the_fused_attention_and_stay_exact() -> None:
    """Over the length where plain products end, on the real default base."""
    base = load_base()
    tensors = far_delta(base.spec, "bitfit", "mean", labels=2, seed=12)
    scaled = {name: value * (0.1 if name.startswith("delta") else 1) for name, value in tensors.items()}
    reference = Reference(find_base(DEFAULT_BASE), scaled, "mean")
    rng = np.random.default_rng(8)
    texts = [Tokens(rng.integers(1000, 20000, n).tolist(), [0] * n) for n in (512, 300, 257, 40, 512)]
    rows = stack_rows(base, [fold(base, {n: torch.from_numpy(v) for n, v in scaled.items()}, "mean")])
    with torch.inference_mode():
        got = logits_of(base, rows, packed(base, texts, [0] * len(texts)))
    assert largest_difference(got, [reference.logits(text.input_ids) for text in texts]) < TOLERANCE
