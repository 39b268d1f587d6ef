"""Branches of many rows in two launches, as Triton programs; importing this file needs Triton.

Each row has its own matrices anywhere in memory: a program reads their addresses from its tile, a record of 64-bit
numbers (fields as in `Tile`). Blocks are the same in every batch, so a text's sums have one order.
"""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl

from onebert_encoder.compute.kernels.gpu.programs import gelu
from onebert_encoder.compute.kernels.gpu.tiles import RANK_BLOCK, TILE_TOKENS, Tile

_START = tl.constexpr(Tile.START.value)
_STOP = tl.constexpr(Tile.STOP.value)
_RANK = tl.constexpr(Tile.RANK.value)
_DOWN = tl.constexpr(Tile.DOWN.value)
_UP = tl.constexpr(Tile.UP.value)
_BIAS = tl.constexpr(Tile.BIAS.value)
_CORE = tl.constexpr(Tile.CORE.value)
_FIELDS = tl.constexpr(len(Tile))
_TOKENS = tl.constexpr(TILE_TOKENS)
_BLOCK = tl.constexpr(RANK_BLOCK)


@triton.jit(do_not_specialize=["low_blocks"])
def shrink(
    tiles: tl.tensor,
    x: tl.tensor,
    low: tl.tensor,
    low_blocks: tl.tensor,
    WIDTH: tl.constexpr,
    K_BLOCK: tl.constexpr,
    R_BLOCK: tl.constexpr,
) -> None:
    """low = x Aᵀ, or gelu(x Aᵀ + c) if the branch has a bias; one program: a tile's tokens, R_BLOCK of the rank."""
    tile = tiles + tl.program_id(0) * _FIELDS
    start, stop, rank = tl.load(tile + _START), tl.load(tile + _STOP), tl.load(tile + _RANK)
    first = tl.program_id(1) * R_BLOCK
    if first >= rank:
        return
    down = tl.multiple_of(tl.load(tile + _DOWN).to(tl.pointer_type(x.dtype.element_ty)), 16)
    bias = tl.load(tile + _BIAS)
    token, of_rank = start + tl.arange(0, _TOKENS), first + tl.arange(0, R_BLOCK)
    is_token, in_rank = (token < stop)[:, None], of_rank < rank
    total = tl.zeros([_TOKENS, R_BLOCK], tl.float32)
    for begin in range(0, WIDTH, K_BLOCK):
        column = begin + tl.arange(0, K_BLOCK)
        inside = column < WIDTH
        x_part = tl.load(x + token[:, None] * WIDTH + column[None, :], mask=is_token & inside[None, :], other=0.0)
        address = down + of_rank[None, :] * WIDTH + column[:, None]
        down_part = tl.load(address, mask=in_rank[None, :] & inside[:, None], other=0.0)
        total = tl.dot(x_part, down_part, total, input_precision="ieee")
    if bias != 0:
        c = tl.load(bias.to(tl.pointer_type(x.dtype.element_ty)) + of_rank, mask=in_rank, other=0.0)
        total += c.to(tl.float32)[None, :]
        total = gelu(total)
    # Columns from the rank to the end of its block are written as zeros, since `expand` reads whole blocks.
    low_width = low_blocks * _BLOCK
    address = low + token[:, None] * low_width + of_rank[None, :]
    tl.store(address, total.to(low.dtype.element_ty), mask=is_token & (of_rank < low_width)[None, :])


@triton.jit(do_not_specialize=["low_blocks"])
def expand(
    tiles: tl.tensor, low: tl.tensor, low_blocks: tl.tensor, y: tl.tensor, WIDTH: tl.constexpr, C_BLOCK: tl.constexpr
) -> None:
    """y += low Bᵀ, or low Rᵀ Bᵀ if the branch has a core; one program: a tile's tokens, C_BLOCK columns of y."""
    tile = tiles + tl.program_id(0) * _FIELDS
    start, stop, rank = tl.load(tile + _START), tl.load(tile + _STOP), tl.load(tile + _RANK)
    if rank == 0:
        return
    up = tl.multiple_of(tl.load(tile + _UP).to(tl.pointer_type(y.dtype.element_ty)), 16)
    core = tl.load(tile + _CORE)
    token, column = start + tl.arange(0, _TOKENS), tl.program_id(1) * C_BLOCK + tl.arange(0, C_BLOCK)
    is_token, inside = (token < stop)[:, None], (column < WIDTH)[None, :]
    total = tl.zeros([_TOKENS, C_BLOCK], tl.float32)
    for begin in range(0, rank, _BLOCK):
        of_rank = begin + tl.arange(0, _BLOCK)
        if core == 0:
            low_part = tl.load(
                low + token[:, None] * (low_blocks * _BLOCK) + of_rank[None, :], mask=is_token, other=0.0
            )
        else:
            turned = tl.zeros([_TOKENS, _BLOCK], tl.float32)
            for first in range(0, rank, _BLOCK):
                of_low = first + tl.arange(0, _BLOCK)
                address = low + token[:, None] * (low_blocks * _BLOCK) + of_low[None, :]
                read = tl.load(address, mask=is_token, other=0.0)
                address = core.to(tl.pointer_type(y.dtype.element_ty)) + of_low[:, None] * rank + of_rank[None, :]
                core_part = tl.load(address, mask=(of_low < rank)[:, None] & (of_rank < rank)[None, :], other=0.0)
                turned = tl.dot(read, core_part, turned, input_precision="ieee")
            low_part = turned.to(low.dtype.element_ty)
        address = up + of_rank[:, None] * WIDTH + column[None, :]
        up_part = tl.load(address, mask=(of_rank < rank)[:, None] & inside, other=0.0)
        total = tl.dot(low_part, up_part, total, input_precision="ieee")
    address = y + token[:, None] * WIDTH + column[None, :]
    total += tl.load(address, mask=is_token & inside, other=0.0).to(tl.float32)
    tl.store(address, total.to(y.dtype.element_ty), mask=is_token & inside)
