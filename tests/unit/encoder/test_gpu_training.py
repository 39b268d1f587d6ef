"""The Triton kernels with gradients and dropout: on a GPU where there is one, else in Triton's interpreter."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import stages
from onebert_encoder.compute.kernels.check import learns_as_plain
from onebert_encoder.compute.kernels.plain import Gain
from onebert_encoder.layout.dropout import Dropout
from onebert_encoder.layout.stage import Stage, stage_of
from stages import DEVICE

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from onebert_encoder.compute.kernels.gpu.load import Shape, load_gpu_training
from onebert_encoder.compute.kernels.gpu.training import GpuTraining

pytestmark = pytest.mark.gpu

draw = partial(stages.draw, device=DEVICE)
FLOAT32 = torch.float32
H, HEADS = 3 * 24, 3


def seeded(*seeds: int, drop: float = 0.3) -> Dropout:
    return Dropout(drop, drop, [torch.Generator(DEVICE).manual_seed(seed) for seed in seeds])


def stage(lengths: list[int], rows: list[int], filling: int = 0) -> Stage:
    return stage_of(lengths, rows, filling, FLOAT32, torch.device(DEVICE))


@pytest.mark.parametrize("dtype", [FLOAT32, *[torch.bfloat16] * (DEVICE == "cuda")])
def test_outputs_and_gradients_are_those_of_the_plain_kernels(dtype: torch.dtype) -> None:
    device = torch.device(DEVICE)
    assert learns_as_plain(GpuTraining, dtype, device, 0.0)
    assert load_gpu_training(Shape(device, dtype, 768, 12, 3072)) is GpuTraining


def attention_mask(at: Stage, dropout: Dropout, lengths: list[int]) -> list[Tensor]:
    """Per sequence [heads, queries, keys], what the first attention of a pass multiplies its probabilities by.

    Equal scores give each key the same share, and `v` says which key it was: `H` // `HEADS` keys at a time.
    """
    tokens, width, longest = sum(lengths), H // HEADS, max(lengths)
    position = torch.cat([torch.arange(length) for length in lengths]).to(DEVICE)
    parts = []
    for first in range(0, longest, width):
        one_hot = (position[:, None] - first == torch.arange(width, device=DEVICE)).float()
        qkv = torch.cat([torch.zeros(tokens, 2 * H, device=DEVICE), one_hot.repeat(1, HEADS)], dim=1)
        with torch.no_grad():
            out = GpuTraining(dropout).attend(qkv, torch.zeros(2, H, device=DEVICE), at, HEADS)
        parts.append(out.view(tokens, HEADS, width))
    whole = torch.cat(parts, dim=2)
    return [own[:, :, : len(own)].transpose(0, 1) * len(own) for own in whole.split(lengths)]


def test_dropped_probabilities_have_the_gradients_of_the_same_mask() -> None:
    """Blocks hold 32 tokens in float32: lengths at their edges and beyond."""
    lengths, rows = [5, 33, 70], [1, 0, 1]
    at, dropout = stage(lengths, rows), seeded(3, 4)
    masks = attention_mask(at, dropout, lengths)
    qkv = draw(sum(lengths), 3 * H, dtype=FLOAT32).requires_grad_()
    b = draw(2, H, dtype=FLOAT32, seed=1).requires_grad_()
    weights = draw(sum(lengths), H, dtype=FLOAT32, seed=2)
    got = GpuTraining(dropout).attend(qkv, b, at, HEADS)
    wanted = []
    for own, row, mask in zip(qkv.split(lengths), rows, masks, strict=True):
        q, k, v = (one.view(len(own), HEADS, -1).transpose(0, 1) for one in own.chunk(3, dim=1))
        q = q + b[row].view(HEADS, 1, -1)
        p = (q @ k.transpose(1, 2) / (H // HEADS) ** 0.5).softmax(-1) * mask
        wanted.append((p @ v).transpose(0, 1).reshape(len(own), H))
    want = torch.cat(wanted)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for own, other in zip(*(torch.autograd.grad((one * weights).sum(), (qkv, b)) for one in (got, want)), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    kept = torch.cat([mask.flatten() for mask in masks])
    # A share of 0.7 of 18,000 numbers has a standard deviation of 0.0034.
    assert 0.68 < (kept > 0).float().mean() < 0.72
    torch.testing.assert_close(kept[kept > 0], torch.full_like(kept[kept > 0], 1 / 0.7), rtol=1e-4, atol=0)


def test_a_row_drops_the_same_alone_and_beside_others_and_other_numbers_each_time() -> None:
    among, alone = stage([5, 33, 8], [1, 0, 1], 2), stage([33], [0], 7)
    ones = torch.ones(48, H, device=DEVICE, requires_grad=True)
    both, one = GpuTraining(seeded(3, 4)), GpuTraining(seeded(3))
    masks = [both.drop(ones, among) for _ in range(2)]
    own = [one.drop(ones[:40], alone) for _ in range(2)]
    for mask, same in zip(masks, own, strict=True):
        assert torch.equal(mask[5:38], same[:33])
        assert torch.equal(torch.autograd.grad(mask.sum(), ones)[0], mask)
        # Of 3,456 numbers; the standard deviation is 0.008.
        assert 0.67 < (mask > 0).float().mean() < 0.73
    assert not torch.equal(*masks)
    assert not torch.equal(masks[0][:5], masks[0][38:43])
    lengths = [5, 33, 8]
    found = attention_mask(stage(lengths, [1, 0, 1]), seeded(3, 4), lengths)[1]
    assert torch.equal(found, attention_mask(stage([33], [0]), seeded(3), [33])[0])
    assert len({tuple(head.flatten().tolist()) for head in found}) == HEADS


@pytest.mark.parametrize("own_gains", [False, True])
def test_gains_and_biases_of_many_rows_have_the_sums_of_their_tokens(own_gains: bool) -> None:
    at = stage([5, 40, 9], [2, 0, 2], 3)
    y, x = (draw(57, H, dtype=FLOAT32, seed=seed).requires_grad_() for seed in (0, 1))
    b, gains = (draw(3, H, dtype=FLOAT32, seed=seed).requires_grad_() for seed in (2, 3))
    shared = draw(H, dtype=FLOAT32, seed=4).requires_grad_()
    gain = Gain(shared, gains, at.row_of_token if own_gains else None)
    got = GpuTraining(seeded(1, 2, 3)).add_norm(y * 1, x, b, at, gain, 1e-12)
    table = gains[at.row_of_token] if own_gains else shared
    want = F.layer_norm(y + x + b[at.row_of_token], (H,), eps=1e-12) * table
    trained = (y, x, b, gains if own_gains else shared)
    weights = draw(57, H, dtype=FLOAT32, seed=5)
    for own, other in zip(*(torch.autograd.grad((one * weights).sum(), trained) for one in (got, want)), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)
