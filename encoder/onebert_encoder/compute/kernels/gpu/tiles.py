"""The work list of the GPU's branches: spans of tokens cut into tiles, one program each."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from onebert_encoder.layout.branches import Branches, LayerSite
from onebert_encoder.layout.upload import Array

TILE_TOKENS = 64

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


def tiles_of(branches: Sequence[Branches], spans: Array) -> tuple[list[Turn], Array]:
    """The turns of all branches that are not sparse, and their tiles: [turns, tiles, fields].

    Two branches of one span have different turns: both add to the same numbers, so they must not run at once. Spans
    [spans, 3] (row, start, stop) with fewer branches at a site have tiles of rank 0.
    """
    edges: list[tuple[int, int]] = []
    # By the identity of their turns, which alike rows share: hashing hundreds of them would take longer than all else.
    alike: dict[int, tuple[tuple[Turn, ...], list[int], list[Array]]] = {}
    for row, start, stop in spans.tolist():
        if branches[row]:
            turns_of_row, numbers = branches[row].dense
            _, members, of_members = alike.setdefault(id(turns_of_row), (turns_of_row, [], []))
            members.append(len(edges))
            of_members.append(numbers)
            edges.append((start, stop))
    turns = sorted({turn for row, _, _ in alike.values() for turn in row}, key=lambda turn: (turn[1], turn[0]))
    of_spans = np.zeros((len(edges), len(turns), len(Tile)), dtype=np.int64)
    if not turns:
        return [], of_spans.transpose(1, 0, 2)
    of_spans[:, :, : Tile.RANK] = np.array(edges)[:, None]
    column_of = {turn: column for column, turn in enumerate(turns)}
    for turns_of_row, members, of_members in alike.values():
        columns = [column_of[turn] for turn in turns_of_row]
        fields = range(Tile.RANK, len(Tile))
        numbers = np.concatenate(of_members).reshape(len(members), len(columns), len(fields))
        of_spans[np.ix_(members, columns, fields)] = numbers
    return turns, np.ascontiguousarray(_cut(of_spans).transpose(1, 0, 2))


def are_aligned(tiles: Array) -> bool:
    """Whether every matrix starts at a multiple of 16 bytes, the width of a GPU's loads; a slice may not."""
    return not (tiles[:, :, [Tile.DOWN, Tile.UP]] % 16).any()


def _cut(spans: Array) -> Array:
    """Cuts spans [spans, turns, fields] into tiles of at most `TILE_TOKENS` tokens: [tiles, turns, fields]."""
    blocks = -(-(spans[:, 0, Tile.STOP] - spans[:, 0, Tile.START]) // TILE_TOKENS)
    tiles = np.repeat(spans, blocks, axis=0)
    block_in_span = np.arange(len(tiles)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    tiles[:, :, Tile.START] += TILE_TOKENS * block_in_span[:, None]
    return tiles
