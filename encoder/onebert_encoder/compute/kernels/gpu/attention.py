"""Ways to compute attention within packed sequences on a GPU; the fastest is measured at start."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.layout.stage import Stage

# Bytes of one column of a block: one program of `attend` takes 64 queries, and 64 keys at a time, in bfloat16, and 32
# in float32, which is exact only without tensor cores and fills the registers sooner. The size is the same in every
# batch, so a text's sums have one order.
_BLOCK_BYTES = 128


class TritonAttention:
    """Our own program: any dtype and head size, adds the queries' bias, one order of sums."""

    name = "triton"

    def __init__(self, programs: Any) -> None:
        self._programs = programs

    def __call__(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int) -> Tensor:
        """`PlainKernels.attend`; programs of blocks past a sequence's end do nothing."""
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
    """PyTorch's FlashAttention for sequences of different lengths, in 16 bits; raises ImportError without it."""

    name = "varlen"

    def __init__(self, programs: Any) -> None:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - not in the oldest supported PyTorch

        self._programs = programs
        self._varlen_attn: Callable[..., Any] = varlen_attn

    def __call__(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int) -> Tensor:
        """Adds the bias to the queries in `qkv` first; the output for the filling is undefined."""
        tokens, h = len(qkv), b_q.shape[1]
        with torch.cuda.device_of(qkv):
            self._programs.add_bias[(tokens,)](
                qkv, qkv.stride(0), b_q, b_q.stride(0), stage.row_of_token, h, power_of_two(h)
            )
        q, k, v = qkv.view(tokens, 3, num_heads, h // num_heads).unbind(1)
        longest = int(stage.lengths.max())
        out: Tensor = self._varlen_attn(q, k, v, stage.edges, stage.edges, longest, longest)
        return out.reshape(tokens, h)


Attention = TritonAttention | VarlenAttention
"""One way to compute attention; `name` appears in logs and in the server's description of its base."""


def power_of_two(n: int) -> int:
    """The lowest power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()
