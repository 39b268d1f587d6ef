"""What the rows of a mixed batch add to the shared products: each run of tokens gets the branches of its own row."""

from torch import Tensor

from onebert_encoder.batch import Stage
from onebert_encoder.kernels.protocol import Kernels
from onebert_encoder.linear import Linear
from onebert_encoder.rows import Rows


def project(kernels: Kernels, linear: Linear, x: Tensor, rows: Rows, stage: Stage, layer: int, site: str) -> Tensor:
    """x (W + BA + S)ᵀ, each run of tokens with the low-rank and sparse differences of its own row."""
    return join(kernels, linear(x), x, rows, stage, layer, site)


def join(kernels: Kernels, y: Tensor, x: Tensor, rows: Rows, stage: Stage, layer: int, site: str) -> Tensor:
    """Each run of tokens of `y`, which the caller gives up, with what the branches of its own row make of `x`."""
    joined = [
        (start, stop, found)
        for row, start, stop in stage.runs
        if (branches := rows.branches[row]) and (found := branches.get((layer, site)))
    ]
    if not joined:
        return y
    return kernels.add_branches(y, x, joined)
