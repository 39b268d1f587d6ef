"""The kernels for CPUs in C++ (library.py says where they come from), used only if they agree with the plain ones.

Their loops run on the OpenMP threads that PyTorch has loaded (docs/decisions/0012-native-kernels.md).
"""

import ctypes
import logging
from array import array
from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.check import matches_plain
from onebert_encoder.compute.kernels.library import Library, check_status, find_library
from onebert_encoder.compute.kernels.protocol import Gain
from onebert_encoder.compute.plain import Linear
from onebert_encoder.layout.branches import Branches, Joined, LayerSite, Sparse, join
from onebert_encoder.layout.stage import Stage

logger = logging.getLogger("onebert.kernels")

_SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}
# Numbers of 64 bits in the structures of branches.h: start and stop of a span, and `native` of its branch.
_OF_LOW_RANK, _OF_SPARSE = 8, 6

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "attend": (_POINTER, _INT, _INT, _POINTER, _INT, _POINTER, _POINTER, _INT, _POINTER, _INT),
    "add_norm": (*[_POINTER] * 2, *[_INT] * 2, _POINTER, _INT, _POINTER, _POINTER, _INT, _POINTER, _FLOAT, _INT),
    "add_activate": (_POINTER, _INT, _INT, _POINTER, _INT, _POINTER, _INT),
    "add_low_rank": (_POINTER, _INT, _POINTER, _INT, _POINTER, _INT, _INT),
    "add_sparse": (_POINTER, _INT, _POINTER, _INT, _POINTER, _INT, _INT),
}


class NativeKernels:
    """Kernels of one pass over memory each; sums are float32 in any dtype; attention has no padding.

    Args:
        library: the compiled kernels.
        dtype: float32 or bfloat16, of all activations, rows and branches.

    Raises:
        MemoryError: by every kernel, where its working memory cannot be had; nothing is computed then.

    Attributes:
        description: the name, and the level of a wheel's library.
    """

    name = "native"
    batch_invariant = True

    def __init__(self, library: Library, dtype: torch.dtype) -> None:
        self.description = self.name if library.level is None else f"{self.name} ({library.level})"
        functions = {name: getattr(library, f"{name}_{_SUFFIX[dtype]}") for name in _SIGNATURES}
        for name, function in functions.items():
            function.argtypes, function.restype, function.errcheck = _SIGNATURES[name], ctypes.c_int, check_status
        self._attend, self._add_norm, self._add_activate, self._add_low_rank, self._add_sparse = functions.values()

    def attend(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int) -> Tensor:
        """Each thread takes one head of one sequence at a time, whose scores fit into the processor's cache."""
        h = b_q.shape[1]
        out = qkv.new_empty(len(qkv), h)
        out[len(qkv) - stage.filling :] = 0
        self._attend(
            *(qkv.data_ptr(), h, num_heads, b_q.data_ptr(), b_q.stride(0), stage.row_of_token.data_ptr()),
            *(stage.edges.data_ptr(), len(stage.lengths), out.data_ptr(), torch.get_num_threads()),
        )
        return out

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
        """Writes into `y`."""
        own = gain.of_token is not None
        table = gain.table if own else gain.shared
        of_token = gain.of_token.data_ptr() if gain.of_token is not None else None
        self._add_norm(
            *(y.data_ptr(), x.data_ptr(), *y.shape, b.data_ptr(), b.stride(0), stage.row_of_token.data_ptr()),
            *(table.data_ptr(), table.stride(0), of_token, eps, torch.get_num_threads()),
        )
        return y

    def add_activate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """GELU, written into `z`."""
        self._add_activate(
            *(z.data_ptr(), *z.shape, b.data_ptr(), b.stride(0), stage.row_of_token.data_ptr()),
            torch.get_num_threads(),
        )
        return z

    def drop(self, x: Tensor, stage: Stage) -> Tensor:
        """`x`: answers are computed without dropout."""
        return x

    def project_activate(self, linear: Linear, x: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """One after the other."""
        return self.add_activate(linear(x), b, stage)

    def join(self, branches: Sequence[Branches], stage: Stage) -> Mapping[LayerSite, Sequence[Joined]]:
        """The spans of each site with their branches."""
        return join(branches.__getitem__, stage.spans)

    def add_branches(self, y: Tensor, x: Tensor, joined: Sequence[Joined]) -> Tensor:
        """Writes into `y`: one call for all sparse branches, one for all others."""
        low_rank, sparse = array("q"), array("q")
        for start, stop, branches in joined:
            for branch in branches:
                (sparse if isinstance(branch, Sparse) else low_rank).extend((start, stop, *branch.native))
        of_kinds = (self._add_low_rank, low_rank, _OF_LOW_RANK), (self._add_sparse, sparse, _OF_SPARSE)
        for function, of_kind, size in of_kinds:
            if of_kind:
                address, numbers = of_kind.buffer_info()
                function(
                    *(address, numbers // size, y.data_ptr(), y.shape[1], x.data_ptr(), x.shape[1]),
                    torch.get_num_threads(),
                )
        return y


@cache
def load_native(device: str, dtype: torch.dtype) -> NativeKernels | None:
    """The kernels for a dtype; None, with a warning in the log, where they cannot be built or are wrong."""
    if device != "cpu" or dtype not in _SUFFIX:
        return None
    library = find_library()
    if library is None:
        return None
    kernels = NativeKernels(library, dtype)
    if not matches_plain(kernels, torch.device(device), dtype):
        logger.warning("the fast CPU kernels give wrong numbers on this machine, so plain PyTorch is used")
        return None
    return kernels
