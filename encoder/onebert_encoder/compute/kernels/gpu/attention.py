"""The ways in which a GPU computes attention within packed sequences; which is the fastest is measured at start.

Each is called like `Kernels.attend`.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from onebert_encoder.layout.stage import Stage

# Bytes of one column of a block: one program of `attend` takes 64 queries, and 64 keys at a time, in bfloat16, and 32
# in float32, which is exact only without tensor cores and fills the registers sooner. The size is the same in every
# batch, so that the sums of a text have one order whatever it is computed beside.
_BLOCK_BYTES = 128


class Attention(Protocol):
    """One way to compute attention.

    Attributes:
        name: in logs and in what the server says of its base.
    """

    name: str

    def __call__(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int) -> Tensor:
        """The same as `Kernels.attend`."""
        ...


class TritonAttention:
    """Our own program: any dtype and head, the bias of the queries gathered inside, one order of sums."""

    name = "triton"

    def __init__(self, programs: Any) -> None:
        self._programs = programs

    def __call__(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int) -> Tensor:
        """Starts programs for every block of the longest sequence; those behind the end of a shorter one do nothing."""
        tokens, h = len(qkv), b_q.shape[1]
        d, block, sequences = h // num_heads, _BLOCK_BYTES // qkv.element_size(), len(stage.lengths)
        out = qkv.new_empty(tokens, h)
        blocks = -(-max(int(stage.lengths.max()), stage.filling) // block)
        with torch.cuda.device_of(qkv):
            self._programs.attend[(sequences + 1, num_heads, blocks)](
                *(qkv, b_q, b_q.stride(0), stage.row_of_token, stage.edges, out, sequences, tokens),
                *(math.log2(math.e) * d**-0.5, h, d, max(16, power_of_two(d)), block),
            )
        return out


class VarlenAttention:
    """PyTorch's FlashAttention for sequences of different lengths: 16-bit dtypes alone.

    Raises:
        ImportError: this PyTorch has none.
    """

    name = "varlen"

    def __init__(self, programs: Any) -> None:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - not in the oldest supported PyTorch

        self._programs = programs
        self._varlen_attn: Callable[..., Any] = varlen_attn

    def __call__(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int) -> Tensor:
        """Adds the bias to the queries in `qkv` first; what it gives for the filling is left unwritten."""
        tokens, h = len(qkv), b_q.shape[1]
        with torch.cuda.device_of(qkv):
            self._programs.add_bias[(tokens,)](
                qkv, qkv.stride(0), b_q, b_q.stride(0), stage.row_of_token, h, power_of_two(h)
            )
        q, k, v = qkv.view(tokens, 3, num_heads, h // num_heads).unbind(1)
        longest = int(stage.lengths.max())
        out: Tensor = self._varlen_attn(q, k, v, stage.edges, stage.edges, longest, longest)
        return out.reshape(tokens, h)


def power_of_two(n: int) -> int:
    """The lowest power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()
