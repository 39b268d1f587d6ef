"""The work list of the GPU's branches: spans of tokens cut into tiles that one program computes."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from onebert_encoder.layout.branches import Branches, LayerSite
from onebert_encoder.layout.upload import Array

TILE_TOKENS = 64

# A product on tensor cores is 16 wide at least, which is also the rank of LoRA's usual two matrices of 8 together.
RANK_BLOCK = 16


class Tile(IntEnum):
    """The fields of a tile: some tokens of one run and a branch of its row, from RANK on as its `native` has them."""

    START = 0
    STOP = 1
    RANK = 2
    DOWN = 3
    UP = 4
    BIAS = 5


def tiles_of(branches: Sequence[Branches], spans: Sequence[tuple[int, int, int]]) -> dict[LayerSite, list[Array]]:
    """By place, [tiles, fields] of the first low-rank branch of every run, then of the second, until no run has more.

    Two branches of one run are never computed at once: both would add to the same numbers. A run, (row, start, stop),
    whose row has none has tiles of no rank.
    """
    own = [(start, stop, *branches[row].dense) for row, start, stop in spans if branches[row]]
    turns = sorted({turn for _, _, found, _ in own for turn in found}, key=lambda turn: (turn[1], turn[0]))
    if not turns:
        return {}
    column_of = {turn: column for column, turn in enumerate(turns)}
    columns = {found: [column_of[turn] for turn in found] for found in {found for _, _, found, _ in own}}
    of_spans = np.zeros((len(own), len(turns), len(Tile)), dtype=np.int64)
    for span, (start, stop, found, numbers) in zip(of_spans, own, strict=True):
        span[:, : Tile.RANK] = start, stop
        span[columns[found], Tile.RANK :] = numbers
    tiles = np.ascontiguousarray(_cut(of_spans).transpose(1, 0, 2))
    by_place: dict[LayerSite, list[Array]] = {}
    for column, (place, _) in enumerate(turns):
        by_place.setdefault(place, []).append(tiles[column])
    return by_place


def are_aligned(tiles: Array) -> bool:
    """Whether every matrix begins where a GPU can load 16 bytes at a time; a slice of another tensor may not."""
    return not (tiles[:, [Tile.DOWN, Tile.UP]] % 16).any()


def _cut(spans: Array) -> Array:
    """[spans, turns, fields] into pieces of so many tokens."""
    blocks = -(-(spans[:, 0, Tile.STOP] - spans[:, 0, Tile.START]) // TILE_TOKENS)
    tiles = np.repeat(spans, blocks, axis=0)
    block_in_run = np.arange(len(tiles)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    tiles[:, :, Tile.START] += TILE_TOKENS * block_in_run[:, None]
    return tiles
