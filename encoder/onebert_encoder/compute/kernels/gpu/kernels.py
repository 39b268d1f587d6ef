"""The GPU kernels: Triton programs (decision 13), compiled on first use, used if they agree with the plain ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.compute.kernels.gpu.tiles import RANK_BLOCK, Tile, Turn, tiles_of
from onebert_encoder.compute.kernels.plain import Gain, PlainKernels
from onebert_encoder.compute.scores import PLAIN_SCORES, RowScores, Scores
from onebert_encoder.layout.branches import Branches, Joined, LayerSite, Sparse, join
from onebert_encoder.layout.stage import Stage
from onebert_encoder.layout.upload import upload

# Bytes of one column of a block: one program of `attend` takes 64 queries, and 64 keys at a time, in bfloat16, and 32
# in float32, which is exact only without tensor cores and fills the registers sooner. The size is the same in every
# batch, so a text's sums have one order.
_BLOCK_BYTES = 128

# Columns per warp of `add_norm` and `add_activate`: they wait for memory, so few warps that read much are fastest. A
# program has at most 32 warps.
_PER_WARP, _MOST_WARPS = 1024, 32

# One program of `shrink` takes K_BLOCK columns of the input at a time, for R_BLOCK of the rank: more than most ranks,
# so that a token is read once. _EXPANDED: columns of one program of `expand`.
_SHRINK = {"K_BLOCK": 64, "R_BLOCK": 64}
_EXPANDED = 128


class GpuKernels(PlainKernels):
    """Kernels of one launch and one pass over memory each; sums are float32 in any dtype; attention has no padding."""

    name = "gpu"

    def __init__(self) -> None:
        from onebert_encoder.compute.kernels.gpu import branches, programs  # noqa: PLC0415

        super().__init__(F.gelu)
        self.programs, self._branches = programs, branches

    @property
    def batch_invariant(self) -> bool:
        return True

    def attend(
        self,
        qkv: Tensor,
        b_q: Tensor,
        stage: Stage,
        num_heads: int,
        scores: Scores = PLAIN_SCORES,
        by_row: Sequence[RowScores] = (),
    ) -> Tensor:
        """`PlainKernels.attend`; programs of blocks past a sequence's end do nothing."""
        tokens, h = len(qkv), b_q.shape[1]
        d, block, sequences = h // num_heads, block_of(qkv), len(stage.lengths)
        out = qkv.new_empty(tokens, h)
        blocks = -(-max(int(stage.lengths.max()), stage.filling) // block)
        with torch.cuda.device_of(qkv):
            self.programs.attend[(sequences + 1, num_heads, blocks)](
                *(qkv, b_q, b_q.stride(0), stage.row_of_token, stage.edges, out),
                *(sequences, tokens),
                *(math.log2(math.e) * d**-0.5, h, d, max(16, power_of_two(d)), block),
            )
        return out

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
        tokens, h = y.shape
        table = gain.shared if gain.of_token is None else gain.table
        block = power_of_two(h)
        with torch.cuda.device_of(y):
            self.programs.add_norm[(tokens,)](
                *(y, x, b, b.stride(0), stage.row_of_token, table, table.stride(0), gain.of_token, eps, h, block),
                num_warps=warps_of(block),
            )
        return y

    def add_activate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        tokens, f = z.shape
        block = power_of_two(f)
        with torch.cuda.device_of(z):
            self.programs.add_activate[(tokens,)](
                z, b, b.stride(0), stage.row_of_token, f, block, num_warps=warps_of(block)
            )
        return z

    def join(self, branches: Sequence[Branches], stage: Stage) -> "GpuBranches":
        """Tiles for all branches but sparse ones; spans if there are no tiles for them."""
        listed = tiles_of(branches, stage.spans)
        if listed is None:
            return GpuBranches({}, None, join(branches.__getitem__, stage.spans))
        ranks, tiles = listed
        on_device = upload({0: tiles}, stage.row_of_token.device)[0] if ranks else None
        blocks = {turn: -(-rank // RANK_BLOCK) for turn, rank in ranks.items()}
        return GpuBranches(blocks, on_device, join(lambda row: branches[row].sparse, stage.spans))

    def add_branches(self, y: Tensor, x: Tensor, joined: "GpuJoined") -> Tensor:
        for tiles, low_blocks in joined.turns:
            self._add_tiles(y, x, tiles, low_blocks)
        return _add_spans(y, x, joined.spans)

    def _add_tiles(self, y: Tensor, x: Tensor, tiles: Tensor, low_blocks: int) -> None:
        low = x.new_empty(len(x), low_blocks * RANK_BLOCK)
        with torch.cuda.device_of(y):
            self._branches.shrink[(len(tiles), -(-low.shape[1] // _SHRINK["R_BLOCK"]))](
                tiles, x, low, low_blocks, x.shape[1], **_SHRINK
            )
            self._branches.expand[(len(tiles), -(-y.shape[1] // _EXPANDED))](
                tiles, low, low_blocks, y, y.shape[1], _EXPANDED
            )


@dataclass(frozen=True)
class GpuJoined:
    """One site's branches: turns of (tiles, largest rank in blocks of `RANK_BLOCK`), then spans for PyTorch."""

    turns: Sequence[tuple[Tensor, int]]
    spans: Sequence[Joined]


class GpuBranches(dict[LayerSite, GpuJoined]):
    """The branches of a stage's rows at all sites; `tiles` is [turns, tiles, fields] on the device.

    `blocks` is the largest rank of each turn in blocks of `RANK_BLOCK`; with `has_spans` PyTorch computes some
    branches.
    """

    def __init__(
        self, blocks: Mapping[Turn, int], tiles: Tensor | None, spans: Mapping[LayerSite, Sequence[Joined]]
    ) -> None:
        self.blocks, self.tiles, self.has_spans = blocks, tiles, bool(spans)
        turns: dict[LayerSite, list[tuple[Tensor, int]]] = {site: [] for site in spans}
        if tiles is not None:
            for (site, _), turn_tiles, count in zip(blocks, tiles, blocks.values(), strict=True):
                turns.setdefault(site, []).append((turn_tiles, count))
        super().__init__({site: GpuJoined(turns_here, spans.get(site, ())) for site, turns_here in turns.items()})

    @property
    def key(self) -> tuple[tuple[Turn, int], ...]:
        """Equal for batches that can share a recording: ranks count as powers of two."""
        return tuple((turn, power_of_two(count)) for turn, count in self.blocks.items())

    def static(self, most_tiles: int) -> "GpuBranches":
        """Tiles of rank 0, which compute nothing, as room for every batch with this key."""
        if self.tiles is None:
            return GpuBranches({}, None, {})
        turns, _, fields = self.tiles.shape
        return GpuBranches(dict(self.key), self.tiles.new_zeros(turns, most_tiles, fields), {})

    def load(self, other: "GpuBranches") -> None:
        if self.tiles is not None and other.tiles is not None:
            count = other.tiles.shape[1]
            self.tiles[:, :count].copy_(other.tiles)
            self.tiles[:, count:, Tile.RANK].zero_()


def block_of(qkv: Tensor) -> int:
    """Queries, and keys at a time, of one program of `attend`."""
    return _BLOCK_BYTES // qkv.element_size()


def warps_of(columns: int) -> int:
    """The warps of a program that reads so many columns of one token, a power of two."""
    return min(max(1, columns // _PER_WARP), _MOST_WARPS)


def power_of_two(n: int) -> int:
    """The lowest power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()


def _add_spans(y: Tensor, x: Tensor, joined: Sequence[Joined]) -> Tensor:
    """Adds the branches to `y` span by span.

    A sparse difference is first expanded to a matrix: on a GPU that is faster than entry by entry, and keeps one order
    of sums (atomic additions differ from run to run).
    """
    for start, stop, branches in joined:
        for branch in branches:
            added = F.linear(x[start:stop], branch.dense()) if isinstance(branch, Sparse) else branch(x[start:stop])
            y[start:stop] += added
    return y
