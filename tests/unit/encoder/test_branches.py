"""Branches on spans of tokens: the C++ kernels and PyTorch's products against dense matrices in float64."""

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from onebert_encoder.compute.kernels import native
from onebert_encoder.compute.kernels.plain import PlainKernels
from onebert_encoder.compute.kernels.protocol import Kernels
from onebert_encoder.layout.branches import Bottleneck, Branch, Core, Joined, LowRank, Sparse, merged
from onebert_encoder.layout.directions import Directions
from stages import draw, needs_kernels

# Tolerances for sums of up to 384 products, of order 1 to 10. float32: a few hundred roundings of 6e-8. bfloat16: the
# plain kernels also round intermediate results to 8 bits.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}
DTYPES = list(TOLERANCE)
SPANS = [1, 2, 16, 17, 40, 3]


def kernels_of(name: str, dtype: torch.dtype) -> Kernels:
    if name == "plain":
        return PlainKernels(torch.nn.functional.gelu)
    kernels = native.load_native("cpu", dtype)
    assert kernels is not None
    return kernels


def low_rank(rank: int, into: int, out: int, dtype: torch.dtype, seed: int) -> LowRank:
    A, B = draw(rank, into, dtype=torch.float32, seed=seed), draw(out, rank, dtype=torch.float32, seed=seed + 1)
    return LowRank(A / into**0.5, B / rank**0.5).to(dtype)


def sparse(entries: int, into: int, out: int, dtype: torch.dtype, seed: int) -> Sparse:
    drawn = torch.randperm(into * out, generator=torch.Generator().manual_seed(seed))[:entries].sort().values
    return Sparse(torch.stack([drawn // into, drawn % into]), draw(len(drawn), dtype=dtype, seed=seed), (out, into))


def bottleneck(rank: int, width: int, dtype: torch.dtype, seed: int) -> Bottleneck:
    down, c = draw(rank, width, dtype=torch.float32, seed=seed), draw(rank, dtype=torch.float32, seed=seed)
    return Bottleneck(down / width**0.5, c, down.T / rank**0.5).to(dtype)


def directions(rank: int, into: int, out: int, dtype: torch.dtype, seed: int) -> Directions:
    down, up = draw(rank, into, dtype=torch.float32, seed=seed), draw(rank, out, dtype=torch.float32, seed=seed + 1)
    return Directions(down / into**0.5, up.T / rank**0.5).to(dtype)


def exact(branch: Branch, x: Tensor) -> Tensor:
    """[tokens, out] in float64, by a dense matrix."""
    x = x.double()
    if isinstance(branch, Core):
        rank = len(branch.R)
        up, down = branch.shared.up[:, :rank].double(), branch.shared.down[:rank].double()
        return x @ (up @ branch.R.double() @ down).T
    if isinstance(branch, LowRank):
        return x @ (branch.B.double() @ branch.A.double()).T
    if isinstance(branch, Sparse):
        dense = torch.zeros(branch.shape, dtype=torch.float64)
        dense[branch.indices[0], branch.indices[1]] = branch.values.double()
        return x @ dense.T
    z = x @ branch.D.double().T + branch.c.double()
    return z * torch.special.ndtr(z) @ branch.U.double().T


def spans_of(branches: list[tuple[Branch, ...]]) -> list[Joined]:
    """A span for each branch; the tokens of the third span have none."""
    starts = [sum(SPANS[:i]) for i in range(len(SPANS))]
    joined = [(start, start + length, own) for start, length, own in zip(starts, SPANS, branches, strict=True)]
    return [*joined[:2], *joined[3:]]


@pytest.mark.parametrize("kernels", ["plain", pytest.param("native", marks=needs_kernels)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 3, 8, 24])
@pytest.mark.parametrize(("into", "out"), [(1, 1), (7, 5), (16, 48), (33, 100), (384, 100), (48, 48)])
@torch.no_grad()
def test_every_span_gets_what_its_own_branches_make(
    kernels: str, dtype: torch.dtype, rank: int, into: int, out: int
) -> None:
    branches: list[tuple[Branch, ...]] = [
        (low_rank(rank, into, out, dtype, i), sparse(out + rank, into, out, dtype, i)) for i in range(len(SPANS))
    ]
    if into == out:
        branches = [(*own, bottleneck(rank, out, dtype, i)) for i, own in enumerate(branches)]
    y, x = draw(sum(SPANS) + 5, out, dtype=dtype), draw(sum(SPANS) + 5, into, dtype=dtype, seed=1)
    want = y.double()
    for start, stop, own in spans_of(branches):
        want[start:stop] += sum(exact(branch, x[start:stop]) for branch in own)
    got = kernels_of(kernels, dtype).add_branches(y.clone(), x, spans_of(branches))
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(got[3:19], y[3:19])


@pytest.mark.parametrize("kernels", ["plain", pytest.param("native", marks=needs_kernels)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("ranks", "outs"), [((8, 0, 8), (33, 33, 34)), ((1, 3, 2), (48, 5, 48)), ((0, 0, 4), (64, 64, 64))]
)
@torch.no_grad()
def test_what_a_column_reaches_is_all_that_it_adds_to(
    kernels: str, dtype: torch.dtype, ranks: tuple[int, ...], outs: tuple[int, ...]
) -> None:
    """Blocks of differences of several maps, which begin and end anywhere."""
    into, blocks = (
        16,
        [low_rank(rank, 16, out, dtype, seed) for seed, (rank, out) in enumerate(zip(ranks, outs, strict=True))],
    )
    stops = list(accumulate(outs))
    reach = [(stop - out, stop) for rank, out, stop in zip(ranks, outs, stops, strict=True) for _ in range(rank)]
    A, B = torch.cat([one.A for one in blocks]), torch.block_diag(*(one.B for one in blocks))
    joined = LowRank(A, B, torch.tensor(reach)).to(dtype)
    y, x = draw(9, sum(outs), dtype=dtype), draw(9, into, dtype=dtype, seed=1)
    got = kernels_of(kernels, dtype).add_branches(y.clone(), x, [(1, 8, (joined,))])
    want = y.double()
    want[1:8] += torch.cat([exact(one, x[1:8]) for one in blocks], dim=1)
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kernels", ["plain", "training", pytest.param("native", marks=needs_kernels)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", [33, 64])
def test_cores_of_any_rank_share_directions_beside_other_branches(kernels: str, dtype: torch.dtype, out: int) -> None:
    """Two maps of one product; rows that change one of them, both or neither, some with branches of their own."""
    first, second = (directions(17, 40, out, dtype, seed).among(seed, 2) for seed in range(2))

    def core(shared: Directions, rank: int) -> Core:
        return Core(draw(rank, rank, dtype=torch.float32, seed=rank), shared).to(dtype)

    rows: list[tuple[Branch, ...]] = [
        (core(first, 4), core(second, 17)),
        (low_rank(3, 40, 2 * out, dtype, 0),),
        (),
        (core(second, 1),),
        (low_rank(2, 40, 2 * out, dtype, 1), core(first, 9), sparse(50, 40, 2 * out, dtype, 1)),
        (core(first, 9),),
    ]
    y, x = draw(sum(SPANS), 2 * out, dtype=dtype), draw(sum(SPANS), 40, dtype=dtype, seed=1)
    want = y.double()
    for start, stop, own in spans_of(rows):
        want[start:stop] += sum(exact(branch, x[start:stop]) for branch in own)
    with torch.set_grad_enabled(kernels == "training"):
        made = kernels_of("native" if kernels == "native" else "plain", dtype)
        got = made.add_branches(y.clone(), x, spans_of(rows))
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_rows_that_share_directions_take_two_products_with_them_together() -> None:
    class Products(TorchDispatchMode):
        def __init__(self, *shared: Tensor) -> None:
            super().__init__()
            self.addresses, self.counted = [one.data_ptr() for one in shared], 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            read = [one.data_ptr() for one in args if isinstance(one, Tensor)]
            self.counted += not function.is_view and any(address in self.addresses for address in read)
            return function(*args, **(kwargs or {}))

    shared = directions(8, 40, 40, torch.float32, 0)
    cores = [Core(draw(rank, rank, dtype=torch.float32), shared) for rank in (8, 2, 5, 8, 3, 1)]
    x = draw(sum(SPANS), 40, dtype=torch.float32)
    for grads in (False, True):
        with torch.set_grad_enabled(grads), Products(shared.down, shared.up) as products:
            kernels_of("plain", torch.float32).add_branches(x.clone(), x, spans_of([(core,) for core in cores]))
        assert products.counted == 2


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_a_span_has_the_same_bits_alone_and_among_others_and_keeps_its_poison(dtype: torch.dtype) -> None:
    shared = directions(7, 33, 33, dtype, 9)
    branches: list[tuple[Branch, ...]] = [
        (
            low_rank(5, 33, 33, dtype, i),
            Core(draw(2 + i, 2 + i, dtype=dtype, seed=i).T, shared),
            sparse(90, 33, 33, dtype, i),
            bottleneck(6, 33, dtype, i),
        )
        for i in range(len(SPANS))
    ]
    y, x = draw(sum(SPANS), 33, dtype=dtype), draw(sum(SPANS), 33, dtype=dtype, seed=1)
    x[36:76] = math.nan
    kernels = kernels_of("native", dtype)
    among = kernels.add_branches(y.clone(), x, spans_of(branches))
    assert torch.isfinite(among[:36]).all()
    assert not torch.isfinite(among[36:76]).any()
    last = slice(len(y) - 3, len(y))
    assert torch.isfinite(among[last]).all()
    assert torch.equal(kernels.add_branches(y[last].clone(), x[last], [(0, 3, branches[-1])]), among[last])


@needs_kernels
@torch.no_grad()
def test_several_branches_of_one_span_are_added_by_one_thread() -> None:
    """If two threads wrote to one token of y, sums would be lost."""
    branches = tuple(low_rank(4, 64, 64, torch.float32, seed) for seed in range(8))
    x = draw(512, 64, dtype=torch.float32)
    want = sum(exact(branch, x) for branch in branches)
    kernels, threads = kernels_of("native", torch.float32), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for _ in range(20):
            got = kernels.add_branches(torch.zeros(512, 64), x, [(0, 512, branches)])
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(threads)


def test_neighboring_spans_of_one_row_are_one_product_and_no_others() -> None:
    one, other = ((low_rank(3, 8, 8, torch.float32, seed),) for seed in (0, 1))
    joined: list[Joined] = [(0, 3, one), (3, 9, one), (9, 12, other), (14, 16, other), (16, 20, one)]
    assert merged(joined) == [(0, 9, one), (9, 12, other), (14, 16, other), (16, 20, one)]
    assert merged([]) == []


def test_gradients_know_no_spans() -> None:
    one, other = ((low_rank(3, 8, 6, torch.float32, seed),) for seed in (0, 1))
    joined: list[Joined] = [(0, 3, one), (3, 9, one), (9, 12, other), (14, 16, other)]
    x = draw(18, 8, dtype=torch.float32).requires_grad_()
    weights = draw(18, 6, dtype=torch.float32, seed=1)
    got = kernels_of("plain", torch.float32).add_branches(torch.zeros(18, 6), x, joined)
    (grad,) = torch.autograd.grad((got * weights).sum(), x)
    want = torch.zeros(18, 8, dtype=torch.float64)
    for start, stop, own in joined:
        (branch,) = own
        assert isinstance(branch, LowRank)
        want[start:stop] = weights[start:stop].double() @ branch.B.double() @ branch.A.double()
    torch.testing.assert_close(grad.double(), want, rtol=TOLERANCE[torch.float32], atol=TOLERANCE[torch.float32])
