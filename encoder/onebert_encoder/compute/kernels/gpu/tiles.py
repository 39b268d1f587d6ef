"""The work list of the GPU's branches: spans of tokens cut into tiles, one program each."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from onebert_encoder.layout.branches import Branches, LayerSite
from onebert_encoder.layout.upload import Array

TILE_TOKENS = 64
_ALIGNMENT = 16

# Ranks are rounded up to this, the smallest width of a product on tensor cores; LoRA of rank 8 on query and value has
# just this rank in total.
RANK_BLOCK = 16


class Tile(IntEnum):
    """The fields of a tile: tokens of one span, and a branch of its row; RANK to CORE are the start of its `native`."""

    START = 0
    STOP = 1
    RANK = 2
    DOWN = 3
    UP = 4
    BIAS = 5
    CORE = 6


Turn = tuple[LayerSite, int]
"""A site, and the number of a span's branches there before this one."""


def tiles_of(branches: Sequence[Branches], spans: Array) -> tuple[dict[Turn, int], Array] | None:
    """The turns of all branches that are not sparse, each with its largest rank, and tiles: [turns, tiles, fields].

    Two branches of one span have different turns: both add to the same numbers, so they must not run at once. Spans
    [spans, 3] (row, start, stop) with fewer branches at a site have tiles of rank 0. Returns None if a matrix does not
    start at a multiple of 16 bytes, the width of a GPU's loads; a slice may not.
    """
    rows, of_span = np.unique(spans[:, 0], return_inverse=True)
    dense = [branches[row].dense for row in rows.tolist()]
    # By the identity of their turns, which alike rows share: hashing hundreds of them would take longer than all else.
    alike: dict[int, list[int]] = {}
    for i, (turns_of_row, _) in enumerate(dense):
        alike.setdefault(id(turns_of_row), []).append(i)
    different = [dense[members[0]][0] for members in alike.values()]
    turns = sorted({turn for row in different for turn in row}, key=lambda turn: (turn[1], turn[0]))
    if not turns:
        return {}, np.empty((0, 0, len(Tile)), dtype=np.int64)
    column_of = {turn: column for column, turn in enumerate(turns)}
    numbers = np.zeros((len(rows), len(turns), len(Tile) - Tile.RANK), dtype=np.int64)
    for members, turns_of_row in zip(alike.values(), different, strict=True):
        columns = [column_of[turn] for turn in turns_of_row]
        of_members = np.concatenate([dense[i][1] for i in members])
        numbers[np.ix_(members, columns)] = of_members.reshape(len(members), len(columns), numbers.shape[2])
    if (numbers[:, :, Tile.DOWN - Tile.RANK : Tile.BIAS - Tile.RANK] % _ALIGNMENT).any():
        return None
    has_turns = np.array([bool(turns_of_row) for turns_of_row, _ in dense])[of_span]
    tiles = _cut(spans[has_turns], numbers.swapaxes(0, 1), of_span[has_turns])
    return dict(zip(turns, numbers[:, :, 0].max(axis=0).tolist(), strict=True)), tiles


def _cut(spans: Array, numbers: Array, of_span: Array) -> Array:
    """Cuts spans into tiles of at most `TILE_TOKENS` tokens, with the numbers [turns, rows, numbers] of their rows."""
    _, starts, stops = spans.T
    blocks = -(-(stops - starts) // TILE_TOKENS)
    of_tile = np.repeat(np.arange(len(spans)), blocks)
    block_in_span = np.arange(len(of_tile)) - (np.cumsum(blocks) - blocks)[of_tile]
    tiles = np.empty((len(numbers), len(of_tile), len(Tile)), dtype=np.int64)
    tiles[:, :, Tile.START] = starts[of_tile] + TILE_TOKENS * block_in_span
    tiles[:, :, Tile.STOP] = stops[of_tile]
    tiles[:, :, Tile.RANK :] = numbers[:, of_span[of_tile]]
    return tiles
