"""The kernels for GPUs: Triton programs, compiled when first needed, and used only if they agree with the plain ones.

Triton comes with the CUDA and ROCm builds of PyTorch; without it the plain kernels compute. Why Triton:
docs/decisions/0013-gpu-kernels.md.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.check import matches_plain
from onebert_encoder.compute.kernels.plain import add_in_place
from onebert_encoder.compute.kernels.protocol import Gain
from onebert_encoder.compute.kernels.tiles import RANK_BLOCK, Tile, are_aligned, tiles_of
from onebert_encoder.layout.branches import Branches, Joined, LayerSite, join
from onebert_encoder.layout.stage import Stage
from onebert_encoder.layout.upload import upload

logger = logging.getLogger("onebert.kernels")

# Bytes of one column of a block: one program of `attend` takes 64 queries, and 64 keys at a time, in bfloat16, and 32
# in float32, which is exact only without tensor cores and fills the registers sooner. The size is the same in every
# batch, so that the sums of a text have one order whatever it is computed beside.
_BLOCK_BYTES = 128

# Columns of one program of `add_activate`.
_ACTIVATED = 1024

# One program of `shrink` takes K_BLOCK columns of the input at a time, for R_BLOCK of the rank: more than most ranks,
# so that a token is read once. Below that, the columns of one program of `expand`.
_SHRINK = {"K_BLOCK": 64, "R_BLOCK": 64}
_EXPANDED = 128


class GpuKernels:
    """Kernels of one launch and one pass over memory each; sums are float32 in any dtype; attention has no padding."""

    name = "gpu"
    batch_invariant = True

    def __init__(self) -> None:
        from onebert_encoder.compute.kernels import gpu_branches, gpu_programs  # noqa: PLC0415

        self._programs, self._branches = gpu_programs, gpu_branches

    def attend(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int) -> Tensor:
        """Starts programs for every block of the longest sequence; those behind the end of a shorter one do nothing."""
        tokens, h = len(qkv), b_q.shape[1]
        d, block, sequences = h // num_heads, _BLOCK_BYTES // qkv.element_size(), len(stage.lengths)
        out = qkv.new_empty(tokens, h)
        blocks = -(-max(int(stage.lengths.max()), stage.filling) // block)
        with torch.cuda.device_of(qkv):
            self._programs.attend[(sequences + 1, num_heads, blocks)](
                *(qkv, b_q, b_q.stride(0), stage.row_of_token, stage.edges, out, sequences, tokens),
                *(math.log2(math.e) * d**-0.5, h, d, max(16, _power_of_two(d)), block),
            )
        return out

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
        """Writes into `y`."""
        tokens, h = y.shape
        table = gain.shared if gain.of_token is None else gain.table
        with torch.cuda.device_of(y):
            self._programs.add_norm[(tokens,)](
                *(y, x, b, b.stride(0), stage.row_of_token, table, table.stride(0), gain.of_token),
                *(eps, h, _power_of_two(h)),
            )
        return y

    def add_activate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """GELU, written into `z`."""
        tokens, f = z.shape
        with torch.cuda.device_of(z):
            self._programs.add_activate[(tokens, -(-f // _ACTIVATED))](
                z, b, b.stride(0), stage.row_of_token, f, _ACTIVATED
            )
        return z

    def drop(self, x: Tensor, stage: Stage) -> Tensor:
        """`x`: answers are computed without dropout."""
        return x

    def join(self, branches: Sequence[Branches], stage: Stage) -> Mapping[LayerSite, "GpuJoined"]:
        """Tiles for low-rank branches and adapters, uploaded in one copy; spans for sparse branches.

        Where a matrix does not begin at a multiple of 16 bytes, all branches stay spans.
        """
        found = tiles_of(branches, stage.spans)
        if not all(are_aligned(tiles) for turns in found.values() for tiles in turns):
            return {site: GpuJoined((), spans) for site, spans in join(branches.__getitem__, stage.spans).items()}
        arrays = {(site, turn): tiles for site, turns in found.items() for turn, tiles in enumerate(turns)}
        on_device = upload(arrays, stage.row_of_token.device)
        sparse = join(lambda row: branches[row].sparse, stage.spans)
        return {
            site: GpuJoined(
                [
                    (on_device[site, turn], -(-int(tiles[:, Tile.RANK].max()) // RANK_BLOCK))
                    for turn, tiles in enumerate(found.get(site, ()))
                ],
                sparse.get(site, ()),
            )
            for site in found.keys() | sparse.keys()
        }

    def add_branches(self, y: Tensor, x: Tensor, joined: "GpuJoined") -> Tensor:
        """Low-rank branches and adapters of all rows in two launches; sparse branches span by span."""
        for tiles, low_blocks in joined.turns:
            self._add_tiles(y, x, tiles, low_blocks)
        return add_in_place(y, x, joined.spans)

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
    """The branches of a stage's rows at one site.

    Attributes:
        turns: (tiles on the device, their largest rank in blocks of `RANK_BLOCK`), to be computed one after the other.
        spans: spans with the branches that PyTorch computes.
    """

    turns: Sequence[tuple[Tensor, int]]
    spans: Sequence[Joined]


def _power_of_two(n: int) -> int:
    """The lowest power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()


@cache
def load_gpu(device: torch.device, dtype: torch.dtype, hidden_size: int, num_heads: int) -> GpuKernels | None:
    """The kernels for bases of one shape, compiled; None, with a warning in the log, where they do not work."""
    try:
        kernels = GpuKernels()
        right = matches_plain(kernels, device, dtype, hidden_size, num_heads)
    except ImportError:
        logger.warning("Triton is not installed, so plain PyTorch is used")
        return None
    except Exception as error:  # whatever Triton's compilers and drivers raise
        logger.warning("the fast GPU kernels do not run (%s), so plain PyTorch is used", type(error).__name__)
        return None
    if not right:
        logger.warning("the fast GPU kernels give wrong numbers on this machine, so plain PyTorch is used")
        return None
    return kernels
