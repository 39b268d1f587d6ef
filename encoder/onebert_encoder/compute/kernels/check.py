"""Whether fast kernels give the numbers of the plain ones: checked once, before they are used."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.compute.kernels.plain import PlainKernels
from onebert_encoder.compute.kernels.protocol import Gain, Kernels
from onebert_encoder.layout.branches import Bottleneck, Branches, LowRank, Sparse
from onebert_encoder.layout.stage import Stage

# Both the absolute and the relative tolerance. bfloat16 keeps 8 bits, and the plain kernels round to them several times
# where a fast kernel rounds once.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}


def matches_plain(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, hidden_size: int = 48, num_heads: int = 2
) -> bool:
    """Compares the outputs of every kernel, for two small sequences, with those of `PlainKernels`."""
    got, want = (
        _sample(each, device, dtype, hidden_size, num_heads).float() for each in (kernels, PlainKernels(F.gelu))
    )
    return torch.allclose(got, want, rtol=_TOLERANCE[dtype], atol=_TOLERANCE[dtype])


@torch.no_grad()
def _sample(kernels: Kernels, device: torch.device, dtype: torch.dtype, h: int, num_heads: int) -> Tensor:
    """The outputs of all kernels for two sequences of different rows and some filling, joined into one vector."""
    lengths, rows, filling = np.array([5, 80]), np.array([1, 0]), 3
    tokens = int(lengths.sum()) + filling
    of_token = torch.tensor([*np.repeat(rows, lengths), *[0] * filling], device=device)
    edges = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
    spans = [(0, int(lengths[0]), tokens - filling)]
    stage = Stage(range(1), None, filling, of_token, spans, edges, rows, lengths, dtype)
    generator = torch.Generator().manual_seed(0)

    def draw(count: int, width: int) -> Tensor:
        return torch.randn(count, width, generator=generator).to(device, dtype)

    b, gains, (shared,) = draw(2, h), draw(2, h), draw(1, h)
    indices = torch.tensor([[0, 0, h - 1], [1, h - 1, 2]], device=device)
    branches = (
        LowRank(draw(3, h) / h, draw(h, 3)).to(dtype),
        Bottleneck(draw(5, h) / h, draw(1, 5)[0], draw(h, 5)).to(dtype),
        Sparse(indices, draw(1, 3)[0], (h, h)),
    )
    joined = kernels.join([Branches({(0, "qkv"): branches})], stage)[0, "qkv"]
    found = (
        kernels.attend(draw(tokens, 3 * h), b, stage, num_heads),
        kernels.add_norm(draw(tokens, h), draw(tokens, h), b, stage, Gain(shared, gains, None), 1e-12),
        kernels.add_norm(draw(tokens, h), draw(tokens, h), b, stage, Gain(shared, gains, of_token), 1e-12),
        kernels.add_activate(draw(tokens, h), b, stage),
        kernels.add_branches(draw(tokens, h), draw(tokens, h), joined),
    )
    return torch.cat([one.flatten() for one in found])
