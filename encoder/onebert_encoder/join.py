"""What the rows of a mixed batch add to the shared products: each run of tokens gets the branches of its own row."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from onebert_encoder.batch import Stage
from onebert_encoder.branches import Branch
from onebert_encoder.linear import FrozenLinear
from onebert_encoder.rows import Rows

Joined = tuple[int, int, Sequence[Branch]]
"""Tokens `start:stop` and the branches of their row."""


def project(linear: FrozenLinear, x: Tensor, rows: Rows, stage: Stage, layer: int, site: str) -> Tensor:
    """x (W + BA + S)ᵀ, each run of tokens with the low-rank and sparse differences of its own row."""
    return join(linear(x), x, rows, stage, layer, site)


def join(y: Tensor, x: Tensor, rows: Rows, stage: Stage, layer: int, site: str) -> Tensor:
    """Each run of tokens of `y`, which the caller gives up, with what the branches of its own row make of `x`."""
    joined = [
        (start, stop, found)
        for row, start, stop in stage.runs
        if (branches := rows.branches[row]) and (found := branches.get((layer, site)))
    ]
    if not joined:
        return y
    return _join_apart(y, x, joined) if torch.is_grad_enabled() else _join_in_place(y, x, joined)


def _join_in_place(y: Tensor, x: Tensor, joined: Sequence[Joined]) -> Tensor:
    for start, stop, branches in joined:
        for branch in branches:
            y[start:stop] += branch(x[start:stop])
    return y


def _join_apart(y: Tensor, x: Tensor, joined: Sequence[Joined]) -> Tensor:
    """Split and joined again, because the gradient of a sum into a slice is as large as the whole, for every slice."""
    edges = [0, *(edge for start, stop, _ in joined for edge in (start, stop)), len(y)]
    lengths = [stop - start for start, stop in pairwise(edges)]
    parts, own_x = list(torch.split(y, lengths)), torch.split(x, lengths)
    # Every second part is one that is joined; the others, which may be empty, lie between.
    for i, (_, _, branches) in zip(range(1, len(parts), 2), joined, strict=True):
        for branch in branches:
            parts[i] = parts[i] + branch(own_x[i])
    return torch.cat(parts)
