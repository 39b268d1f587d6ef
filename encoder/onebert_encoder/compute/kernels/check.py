"""Checks that fast kernels give the plain kernels' numbers, once before they are used."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.compute.kernels.plain import Gain, PlainKernels
from onebert_encoder.layout.branches import Bottleneck, Branches, Core, Directions, LowRank, Sparse
from onebert_encoder.layout.dropout import Dropout
from onebert_encoder.layout.stage import CPU, stage_of

# Both the absolute and the relative tolerance. bfloat16 keeps 8 bits, and the plain kernels round several times where a
# fast kernel rounds once.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}


def matches_plain(
    kernels: PlainKernels,
    device: torch.device,
    dtype: torch.dtype,
    hidden_size: int = 48,
    num_heads: int = 2,
    intermediate: int = 96,
) -> bool:
    """Compares the outputs of every kernel with `PlainKernels`, for two small sequences."""
    got, want = (
        _sample(each, device, dtype, hidden_size, num_heads, intermediate).float()
        for each in (kernels, PlainKernels(F.gelu))
    )
    return torch.allclose(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def learns_as_plain(make: Callable[[Dropout], PlainKernels], dtype: torch.dtype) -> bool:
    """Compares outputs and gradients with `PlainKernels` in float32, on a CPU, for two small sequences with dropout."""

    def learned(kernels_for: Callable[[Dropout], PlainKernels], computed: torch.dtype) -> list[Tensor]:
        dropout = Dropout(0.2, 0.2, [torch.Generator().manual_seed(row) for row in range(2)])
        return _learned(kernels_for(dropout), dtype, computed)

    got, want = learned(make, dtype), learned(partial(PlainKernels, F.gelu), torch.float32)
    tolerance = TOLERANCE[dtype]
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(got, want, strict=True))


@torch.inference_mode(False)  # the first user of the kernels may compute without gradients
@torch.enable_grad()
def _learned(kernels: PlainKernels, dtype: torch.dtype, computed: torch.dtype) -> list[Tensor]:
    stage, h, heads = stage_of([5, 40], [1, 0], 0, computed, CPU), 48, 2
    tokens, of_token = len(stage.row_of_token), stage.row_of_token
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(computed).requires_grad_()

    shapes = ((tokens, 3 * h), *[(tokens, h)] * 2, *[(2, h)] * 3)
    qkv, x, z, b, wide, gains = (draw(*shape) for shape in shapes)
    context = kernels.drop(kernels.attend(qkv * 1, b, stage, heads), stage)
    normed = kernels.add_norm(context, x, b, stage, Gain(gains[0], gains, of_token), 1e-12)
    active = kernels.add_activate(z * normed, wide, stage)
    out = kernels.add_norm(active, normed, wide, stage, Gain(gains[1], gains, None), 1e-12)
    weights = torch.randn(out.shape, generator=generator)
    grads = torch.autograd.grad((out.float() * weights).sum(), (qkv, x, z, b, wide, gains))
    return [tensor.detach().float() for tensor in (out, *grads)]


@torch.no_grad()
def _sample(kernels: PlainKernels, device: torch.device, dtype: torch.dtype, h: int, num_heads: int, f: int) -> Tensor:
    """The outputs of all kernels for two sequences of different rows and some filling, joined into one vector."""
    stage = stage_of([5, 80], [0, 1], 3, dtype, device)
    tokens, of_token, filled = 88, stage.row_of_token, 85
    generator = torch.Generator().manual_seed(0)

    def draw(count: int, width: int) -> Tensor:
        return torch.randn(count, width, generator=generator).to(device, dtype)

    b, gains, (shared,) = draw(2, h), draw(2, h), draw(1, h)
    indices = torch.tensor([[0, 0, h - 1], [1, h - 1, 2]], device=device)
    branches = (
        LowRank(draw(3, h) / h, draw(h, 3)).to(dtype),
        Core(draw(3, 3), Directions(draw(4, h) / h, draw(4, h).T)).to(dtype),
        Bottleneck(draw(5, h) / h, draw(1, 5)[0], draw(h, 5)).to(dtype),
        Sparse(indices, draw(1, 3)[0], (h, h)),
    )
    joined = kernels.join([Branches(), Branches({(0, "qkv"): branches})], stage)[0, "qkv"]
    outputs = (
        kernels.attend(draw(tokens, 3 * h), b, stage, num_heads)[:filled],
        kernels.add_norm(draw(tokens, h), draw(tokens, h), b, stage, Gain(shared, gains, None), 1e-12),
        kernels.add_norm(draw(tokens, h), draw(tokens, h), b, stage, Gain(shared, gains, of_token), 1e-12),
        kernels.add_activate(draw(tokens, f), draw(2, f), stage),
        kernels.add_branches(draw(tokens, h), draw(tokens, h), joined),
    )
    return torch.cat([output.flatten() for output in outputs])
