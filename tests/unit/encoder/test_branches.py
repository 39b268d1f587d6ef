"""Branches on spans of tokens: PyTorch's products against dense matrices in float64.

The C++ of the pass in one call is compared with these, in test_forward.py.
"""

import pytest
import torch

from onebert_encoder.compute.kernels.plain import PlainKernels
from onebert_encoder.layout.branches import Branch, Core, Directions, Joined, merged
from stages import bottleneck, directions, draw, exact, low_rank, sparse

# Tolerances for sums of up to 384 products, of order 1 to 10. float32: a few hundred roundings of 6e-8. bfloat16: the
# plain kernels also round intermediate results to 8 bits.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}
DTYPES = list(TOLERANCE)
SPANS = [1, 2, 16, 17, 40, 3]
PLAIN = PlainKernels(torch.nn.functional.gelu)


def spans_of(branches: list[tuple[Branch, ...]]) -> list[Joined]:
    """A span for each branch; the tokens of the third span have none."""
    starts = [sum(SPANS[:i]) for i in range(len(SPANS))]
    joined = [(start, start + length, branch) for start, length, branch in zip(starts, SPANS, branches, strict=True)]
    return [*joined[:2], *joined[3:]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 3, 24])
@pytest.mark.parametrize(("into", "out"), [(1, 1), (7, 5), (16, 48), (33, 100), (384, 100), (48, 48)])
@torch.no_grad()
def test_every_span_gets_what_its_own_branches_make(dtype: torch.dtype, rank: int, into: int, out: int) -> None:
    branches: list[tuple[Branch, ...]] = [
        (low_rank(rank, into, out, dtype, i), sparse(out + rank, into, out, dtype, i)) for i in range(len(SPANS))
    ]
    if into == out:
        branches = [(*branches_of_span, bottleneck(rank, out, dtype, i)) for i, branches_of_span in enumerate(branches)]
    y, x = draw(sum(SPANS) + 5, out, dtype=dtype), draw(sum(SPANS) + 5, into, dtype=dtype, seed=1)
    want = y.double()
    for start, stop, branches_of_span in spans_of(branches):
        want[start:stop] += sum(exact(branch, x[start:stop]) for branch in branches_of_span)
    got = PLAIN.add_branches(y.clone(), x, spans_of(branches))
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(got[3:19], y[3:19])


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", [33, 64])
def test_cores_of_any_rank_share_directions_beside_other_branches(learns: bool, dtype: torch.dtype, out: int) -> None:
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
    for start, stop, branches_of_span in spans_of(rows):
        want[start:stop] += sum(exact(branch, x[start:stop]) for branch in branches_of_span)
    with torch.set_grad_enabled(learns):
        got = PLAIN.add_branches(y.clone(), x, spans_of(rows))
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_neighboring_spans_of_one_row_are_one_product_and_no_others() -> None:
    first, other = ((low_rank(3, 8, 8, torch.float32, seed),) for seed in (0, 1))
    joined: list[Joined] = [(0, 3, first), (3, 9, first), (9, 12, other), (14, 16, other), (16, 20, first)]
    assert merged(joined) == [(0, 9, first), (9, 12, other), (14, 16, other), (16, 20, first)]
    assert merged([]) == []
