"""The Triton programs for branches of many rows against dense matrices in float64, on a GPU or in the interpreter."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import stages
from onebert_encoder.compute.kernels.gpu import kernels as gpu
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.layout.branches import Branches, Core, Joined, LowRank
from onebert_encoder.layout.stage import stage_of
from stages import DEVICE, HALF, bottleneck, directions, exact

pytest.importorskip("triton", reason="Triton exists for Linux alone")

pytestmark = pytest.mark.gpu

draw = partial(stages.draw, device=DEVICE)

# Tolerances for sums of up to 200 products, of order 1 to 10, with intermediate results rounded to the dtype.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.1}
# Tiles have 64 tokens: spans are shorter, as long, one longer and much longer, with tokens without a branch between.
SPANS = [(0, 1), (1, 65), (70, 135), (140, 144), (144, 310)]
TOKENS = 315


low_rank, adapter = partial(stages.low_rank, device=DEVICE), partial(bottleneck, device=DEVICE)


def add(y: Tensor, x: Tensor, joined: list[Joined]) -> Tensor:
    """Adds the branches by the Triton kernels, with a row of its own for each span."""
    place, rows = (3, "qkv"), [Branches(), *(Branches({(3, "qkv"): branches}) for _, _, branches in joined)]
    spans = [(row, start, stop) for row, (start, stop, _) in enumerate(joined, 1)]
    stage = replace(stage_of([len(y)], [0], 0, y.dtype, torch.device(DEVICE)), spans=np.array(spans))
    kernels = GpuKernels()
    return kernels.add_branches(y, x, kernels.join(rows, stage)[place])


def assert_joined(joined: list[Joined], into: int, out: int, dtype: torch.dtype) -> None:
    y = draw(TOKENS, out, dtype=dtype)
    x = draw(TOKENS, into, dtype=dtype, seed=1)
    want = y.double()
    for start, stop, branches in joined:
        want[start:stop] += sum(exact(branch, x[start:stop]) for branch in branches)
    got = add(y.clone(), x, joined)
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    alone = torch.ones(TOKENS, dtype=torch.bool)
    for start, stop, _ in joined:
        alone[start:stop] = False
    assert torch.equal(got[alone], y[alone])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_ranks_of_all_sizes_in_one_batch(dtype: torch.dtype) -> None:
    branches = [(low_rank(rank, 65, 200, dtype, rank),) for rank in (1, 16, 3, 65, 24)]
    assert_joined([(*span, branch) for span, branch in zip(SPANS, branches, strict=True)], 65, 200, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_cores_of_all_ranks_share_directions_beside_low_rank_branches(dtype: torch.dtype) -> None:
    into, out = 65, 100
    shared = directions(48, into, out, torch.float32, 0, DEVICE).among(1, 2).to(dtype)
    cores = [
        Core(draw(rank, rank, dtype=torch.float32, seed=rank) / rank**0.5, shared).to(dtype) for rank in (1, 16, 3, 48)
    ]
    branch = low_rank(20, into, 2 * out, dtype, 0)
    rows = [(cores[0],), (cores[1], branch), (branch,), (branch, cores[2]), (cores[3],)]
    assert_joined([(*span, branches) for span, branches in zip(SPANS, rows, strict=True)], into, 2 * out, dtype)


def test_an_adapter_reads_what_it_adds_to() -> None:
    y = draw(TOKENS, 40, dtype=torch.float32)
    branch = adapter(8, 40, torch.float32, 1)
    want = y.double()
    want[3:150] += exact(branch, y[3:150])
    got = y.clone()
    got = add(got, got, [(3, 150, (branch,))])
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_matrices_that_lie_askew_are_left_to_the_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draw(1 + 3 * 24, dtype=torch.float32)
    A = whole[1:].view(3, 24)
    askew = LowRank(A, A.T)
    monkeypatch.setattr(gpu.GpuKernels, "_add_tiles", None)
    assert_joined([(0, 70, (askew,))], 24, 24, torch.float32)


# Triton's interpreter computes with numpy, which warns of the NaN and infinity put in on purpose.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_a_span_has_the_same_bits_alone_and_among_others(dtype: torch.dtype) -> None:
    branches = [(low_rank(5 + 20 * i, 33, 48, dtype, i),) for i in range(len(SPANS))]
    y = draw(TOKENS, 48, dtype=dtype)
    x = draw(TOKENS, 33, dtype=dtype, seed=1)
    x[70:135] = math.nan
    among = add(y.clone(), x, [(*span, branch) for span, branch in zip(SPANS, branches, strict=True)])
    assert among[70:135].isnan().all()
    for i in (0, 1, 3, 4):
        start, stop = SPANS[i]
        assert torch.isfinite(among[start:stop]).all()
        alone = add(y[start:stop].clone(), x[start:stop], [(0, stop - start, branches[i])])
        assert torch.equal(alone, among[start:stop])
