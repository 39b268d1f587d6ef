"""What the rows of a mixed batch add to the shared products: each run of tokens gets the branches of its own row."""

import torch
from torch import Tensor

from onebert_encoder.batch import Stage
from onebert_encoder.linear import FrozenLinear
from onebert_encoder.rows import Rows


def project(linear: FrozenLinear, x: Tensor, rows: Rows, stage: Stage, layer: int, site: str) -> Tensor:
    """x (W + BA + S)ᵀ, each run of tokens with the low-rank and sparse differences of its own row."""
    return join(linear(x), x, rows, stage, layer, site)


def join(y: Tensor, x: Tensor, rows: Rows, stage: Stage, layer: int, site: str) -> Tensor:
    """Each run of tokens of `y` with what the branches of its own row make of `x`."""
    found = [rows.branches[row].get((layer, site), ()) for row, _, _ in stage.runs]
    if not any(found):
        return y
    # Split and joined again, because the gradient of a sum into a slice is as large as the whole, for every slice.
    lengths = [stop - start for _, start, stop in stage.runs]
    parts = list(torch.split(y, lengths))
    for i, (own_x, branches) in enumerate(zip(torch.split(x, lengths), found, strict=True)):
        for branch in branches:
            parts[i] = parts[i] + branch(own_x)
    return torch.cat(parts)
