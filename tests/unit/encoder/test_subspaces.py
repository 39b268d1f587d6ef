"""The singular directions between which LoRA-XS tasks learn: those of NumPy, whatever was asked for before."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bases import singular_difference, tiny_base
from onebert_encoder.base.base import load_base
from onebert_encoder.base.subspaces import Subspaces

SHAPES = {"wide.weight": (12, 30), "narrow.weight": (30, 12), "square.weight": (20, 20)}


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("module", ["wide", "narrow", "square"])
@pytest.mark.parametrize("rank", [1, 5, 12])
def test_the_directions_are_those_of_the_decomposition(module: str, rank: int) -> None:
    params = weights()
    left, right = Subspaces(params).factors(module, rank)
    R = torch.randn(rank, rank, generator=torch.Generator().manual_seed(1))
    # Computed in float64 and rounded to float32, then three products of numbers of order 1 to 10.
    wanted = singular_difference(params[f"{module}.weight"].numpy(), R)
    torch.testing.assert_close(left @ R @ right, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(right @ right.T, torch.eye(rank), rtol=0, atol=1e-6)


def test_a_smaller_rank_has_the_first_directions() -> None:
    rising, falling = Subspaces(weights()), Subspaces(weights())
    small, large = rising.factors("wide", 3), rising.factors("wide", 7)
    assert all(map(torch.equal, large, falling.factors("wide", 7)))
    assert all(map(torch.equal, small, falling.factors("wide", 3)))
    assert torch.equal(large[0][:, :3], small[0])


def test_the_sign_of_a_weight_that_was_decomposed_otherwise_makes_no_difference() -> None:
    """Rows in another order: another path through the decomposition, whose signs are free, to the same directions."""
    weight, order = weights()["square.weight"], np.random.default_rng(2).permutation(20)
    left, right = Subspaces({"x.weight": weight}).factors("x", 6)
    moved, same = Subspaces({"x.weight": weight[order]}).factors("x", 6)
    torch.testing.assert_close(moved, left[order], rtol=0, atol=1e-5)
    torch.testing.assert_close(same, right, rtol=0, atol=1e-5)


def test_replaced_parameters_keep_the_directions_that_were_loaded() -> None:
    base = load_base(str(tiny_base("bert")))
    name = base.anatomy.modules[0].name
    changed = base.with_params({f"{name}.weight": torch.zeros_like(base.params[f"{name}.weight"])})
    assert all(
        map(torch.equal, base.subspaces.factors(name, 2), changed.in_dtype(torch.bfloat16).subspaces.factors(name, 2))
    )


def test_rows_of_ranks_that_differ_little_share_one_matrix() -> None:
    subspaces = Subspaces(weights())
    shared = subspaces.directions("wide", 5)
    assert subspaces.directions("wide", 8) is subspaces.directions("wide", 3) is shared
    assert shared.among(1, 3).to(torch.bfloat16) is shared.among(1, 3).to(torch.bfloat16)
    assert shared.to(torch.float32) is shared
    assert subspaces.directions("wide", 11).down.shape == (12, 30)


def test_a_training_may_use_what_an_answer_asked_for_first() -> None:
    subspaces = Subspaces(weights())
    with torch.inference_mode():
        subspaces.directions("wide", 5).among(1, 3).to(torch.bfloat16)
    shared = subspaces.directions("wide", 5).among(1, 3).to(torch.bfloat16)
    x = torch.ones(2, 30, dtype=torch.bfloat16, requires_grad=True)
    (x @ shared.down.T @ shared.up.T).sum().backward()
    assert x.grad is not None
