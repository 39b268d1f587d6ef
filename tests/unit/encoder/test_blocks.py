"""Blocks and scores of families: which layers a delta shares, and scores that nothing computes."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bases import loaded, tiny_base
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.base.families import FAMILIES
from onebert_encoder.base.family import Family
from onebert_encoder.base.params import Params
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import diverges_at
from onebert_store.errors import UnsupportedBase

BARE = load_base(str(tiny_base("bert")))
H = BARE.config.hidden_size


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def base_of(family: Family, params: Mapping[str, Tensor]) -> Base:
    return replace(BARE, anatomy=replace(BARE.anatomy, family=family), params=Params(params))


@pytest.mark.parametrize("family", ["modernbert", "eurobert"])
def test_a_delta_of_the_final_norm_alone_shares_all_layers(family: str) -> None:
    base = loaded(family)
    names = {parameter.symbol: parameter.name for parameter in base.anatomy.parameters if parameter.layer is None}
    head = {"head.weight": drawn(3, H), "head.bias": drawn(3)}
    changed = {f"delta.{names[symbol]}": drawn(H, seed=i) for i, symbol in enumerate(("b_LNf", "g_LNf"))}
    bare, row = fold(base, {}), fold(base, {**changed, **head})
    assert diverges_at(row, bare, base) == base.config.num_layers
    assert (row.gain, row.g_LN0) == (None, None)


def test_scores_that_nothing_computes_are_refused_at_load() -> None:
    message = "attention scores 'far' are not computed; computed: none, relative, rotary"
    with pytest.raises(UnsupportedBase, match=message):
        base_of(replace(FAMILIES["bert"], scores="far"), BARE.params)
