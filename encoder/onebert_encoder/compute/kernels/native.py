"""The operations between the matrix products on a CPU, forward and backward, in C++ (cpu/training.cpp).

Used with gradients or dropout, and for answers outside the one-call pass (maths/forward.py). Without a compiler, or for
activations other than GELU, the plain kernels compute; both drop the same numbers.
"""

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.compute.disentangled import Disentangled
from onebert_encoder.compute.kernels.check import learns_as_plain
from onebert_encoder.compute.kernels.library import FLOAT, INT, POINTER, find_library, functions_of
from onebert_encoder.compute.kernels.plain import Gain, PlainKernels
from onebert_encoder.compute.scores import PLAIN_SCORES, ByDistance, Rotary, RowScores, Scores, turn_tokens
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout, keep_of
from onebert_encoder.layout.stage import Stage
from onebert_encoder.layout.upload import Array

logger = logging.getLogger("onebert.kernels")


class _Keep(ctypes.Structure):
    _fields_ = [("below", ctypes.c_int32), ("scale", FLOAT)]


class _Attention(ctypes.Structure):
    _fields_ = [
        ("qkv", POINTER),
        *((name, INT) for name in ("h", "heads")),
        ("b_q", POINTER),
        ("stride", INT),
        *((name, POINTER) for name in ("row_of_token", "edges")),
        ("count", INT),
        ("drawn", POINTER),
        ("keep", _Keep),
        ("added", POINTER),
        ("most", INT),
        ("window", INT),
        ("threads", INT),
    ]


class _Terms(NamedTuple):
    """Additions to scores: each sequence's table of `ByDistance` by address, a window, tables for the backward pass."""

    tables: Array | None = None
    max_length: int = 0
    window: int = 0
    referenced: Sequence[Tensor] = ()


_BIAS = (POINTER, INT, POINTER)
_GAIN = (POINTER, INT, POINTER)
_SIGNATURES = {
    "drop": (POINTER, INT, POINTER, _Keep, POINTER, INT),
    "norm": (*[POINTER] * 2, *[INT] * 2, *_BIAS, *_GAIN, FLOAT, *[POINTER] * 2, INT),
    "norm_back": (*[POINTER] * 3, *[INT] * 2, POINTER, *_GAIN, *[POINTER] * 3, INT),
    "activate": (POINTER, *[INT] * 2, *_BIAS, POINTER, INT),
    "activate_back": (*[POINTER] * 2, *[INT] * 2, *_BIAS, *[POINTER] * 2, INT),
    "attend": (POINTER, POINTER),
    "attend_back": (POINTER, *[POINTER] * 3),
}
_SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}

Functions = Mapping[str, Callable[..., int]]
"""The compiled functions for one dtype, by their names in `_SIGNATURES`."""


class NativeKernels(PlainKernels):
    """The plain kernels' operations with one pass over memory each way; sums are float32 in any dtype.

    Each raises MemoryError, and computes nothing, if its working memory cannot be allocated. `level` names the wheel's
    library; None if it was built for this machine.
    """

    name = "native"

    def __init__(
        self,
        functions: Functions,
        level: str | None,
        dropout: Dropout = NO_DROPOUT,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        centered: bool = True,
    ) -> None:
        super().__init__(activation, dropout, centered)
        self._functions, self._level = functions, level

    @property
    def batch_invariant(self) -> bool:
        return True

    @property
    def description(self) -> str:
        return self.name if self._level is None else f"{self.name} ({self._level})"

    def attend(
        self,
        qkv: Tensor,
        b_q: Tensor,
        stage: Stage,
        num_heads: int,
        scores: Scores = PLAIN_SCORES,
        by_row: Sequence[RowScores] = (),
    ) -> Tensor:
        """Does not pad; the backward pass recomputes the probabilities. Trained numbers for distances go plainly."""
        if isinstance(scores, Disentangled):
            return super().attend(qkv, b_q, stage, num_heads, scores, by_row)
        terms = _Terms()
        if isinstance(scores, ByDistance):
            tables = [scores.of_row(by_row[row]) for row in stage.rows.tolist()]
            if any(table.requires_grad for table in tables):
                return super().attend(qkv, b_q, stage, num_heads, scores, by_row)
            addresses = np.array([table.data_ptr() for table in tables], dtype=np.int64)
            terms = _Terms(addresses, scores.max_length, referenced=tables)
        if isinstance(scores, Rotary):
            qkv = turn_tokens(scores, qkv, b_q, stage, num_heads)
            # The biases are in `qkv` now: one row of zeros stands for every row.
            b_q = qkv.new_zeros(1, qkv.shape[1] // 3).expand(len(b_q), -1)
            terms = _Terms(window=scores.window)
        return _attend(qkv.contiguous(), b_q, self._functions, stage, num_heads, self._dropout, terms)

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
        """Leaves the normalized numbers, without the gain, in `y`."""
        if not self._centered:
            return super().add_norm(y, x, b, stage, gain, eps)
        table = gain.shared if gain.of_token is None else gain.table
        norm = _Norm(self._functions, stage, gain.of_token, eps)
        return _add_norm(y.contiguous(), x.contiguous(), b, table, norm)

    def add_activate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        if self._activation is not F.gelu:
            return super().add_activate(z, b, stage)
        return _add_activate(z.contiguous(), b, self._functions, stage)

    def drop(self, x: Tensor, stage: Stage) -> Tensor:
        if not self._dropout.hidden:
            return x
        return _drop(x.contiguous(), self._functions, self._dropout.of_tokens(stage, x.shape[1]), self._dropout.hidden)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, functions: Functions, drawn: Tensor, drop: float) -> Tensor:
        ctx.functions, ctx.drawn, ctx.drop = functions, drawn, drop
        ctx.mark_dirty(x)
        return _dropped(x, x, functions, drawn, drop)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()
        return _dropped(grad, torch.empty_like(grad), ctx.functions, ctx.drawn, ctx.drop), None, None, None


def _dropped(x: Tensor, out: Tensor, functions: Functions, drawn: Tensor, drop: float) -> Tensor:
    keep = _Keep(*keep_of(drop))
    functions["drop"](x.data_ptr(), x.numel(), drawn.data_ptr(), keep, out.data_ptr(), torch.get_num_threads())
    return out


class _Norm(NamedTuple):
    functions: Functions
    stage: Stage
    of_token: Tensor | None
    eps: float


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, b: Tensor, gain: Tensor, norm: _Norm) -> Tensor:
        out, scales = torch.empty_like(y), torch.empty(len(y), dtype=torch.float32)
        ctx.norm = norm
        norm.functions["norm"](
            *(y.data_ptr(), x.data_ptr(), *y.shape, *_bias(b, norm.stage), *_gain(gain, norm.of_token), norm.eps),
            *(out.data_ptr(), scales.data_ptr(), torch.get_num_threads()),
        )
        ctx.save_for_backward(y, scales, b, gain)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (normed, scales, b, gain), norm = ctx.saved_tensors, ctx.norm
        grad = grads[0].contiguous()
        of_y, of_x, of_b, of_gain = ctx.needs_input_grad[:4]
        grad_in, grad_b, grad_gain = torch.empty_like(grad), _sums(b, of_b), _sums(gain, of_gain)
        norm.functions["norm_back"](
            *(grad.data_ptr(), normed.data_ptr(), scales.data_ptr(), *grad.shape, norm.stage.row_of_token.data_ptr()),
            *(*_gain(gain, norm.of_token), grad_in.data_ptr(), _address(grad_b), _address(grad_gain)),
            torch.get_num_threads(),
        )
        of_rows = _like(grad_b, b), _like(grad_gain, gain)
        return grad_in if of_y else None, grad_in if of_x else None, *of_rows, None


class _AddActivate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, b: Tensor, functions: Functions, stage: Stage) -> Tensor:
        out = torch.empty_like(z)
        ctx.functions, ctx.stage = functions, stage
        functions["activate"](*(z.data_ptr(), *z.shape, *_bias(b, stage), out.data_ptr(), torch.get_num_threads()))
        ctx.save_for_backward(z, b)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, b = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_z, grad_b = torch.empty_like(grad), _sums(b, ctx.needs_input_grad[1])
        ctx.functions["activate_back"](
            *(grad.data_ptr(), z.data_ptr(), *z.shape, *_bias(b, ctx.stage), grad_z.data_ptr(), _address(grad_b)),
            torch.get_num_threads(),
        )
        return grad_z, _like(grad_b, b), None, None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        b_q: Tensor,
        functions: Functions,
        stage: Stage,
        num_heads: int,
        dropout: Dropout,
        terms: _Terms,
    ) -> Tensor:
        ctx.functions, ctx.stage, ctx.num_heads, ctx.drop = functions, stage, num_heads, dropout.attention
        ctx.terms = terms
        ctx.drawn, ctx.places = _drawn(stage, num_heads, dropout) if dropout.attention else ([], None)
        ctx.save_for_backward(qkv, b_q)
        out = qkv.new_empty(len(qkv), b_q.shape[1])
        out[len(qkv) - stage.filling :] = 0
        functions["attend"](ctypes.byref(_attention(ctx, qkv, b_q)), out.data_ptr())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv, b_q = ctx.saved_tensors
        grad, grad_qkv, grad_b = grads[0].contiguous(), torch.empty_like(qkv), _sums(b_q, ctx.needs_input_grad[1])
        grad_qkv[len(qkv) - ctx.stage.filling :] = 0
        ctx.functions["attend_back"](
            *(ctypes.byref(_attention(ctx, qkv, b_q)), grad.data_ptr(), grad_qkv.data_ptr(), _address(grad_b))
        )
        return grad_qkv, _like(grad_b, b_q), None, None, None, None, None


def _attention(ctx: Any, qkv: Tensor, b_q: Tensor) -> _Attention:
    stage, places = ctx.stage, ctx.places
    tables, max_length, window, _ = ctx.terms
    return _Attention(
        *(qkv.data_ptr(), b_q.shape[1], ctx.num_heads, *_bias(b_q, stage), stage.edges.data_ptr(), len(stage.lengths)),
        *(None if places is None else places.ctypes.data, _Keep(*keep_of(ctx.drop))),
        *(None if tables is None else tables.ctypes.data, max_length, window, torch.get_num_threads()),
    )


def _drawn(stage: Stage, num_heads: int, dropout: Dropout) -> tuple[list[Tensor], Array]:
    """Random numbers, and for each sequence of the stage their address and the length they are drawn for."""
    tensors, places = [], []
    for bucket in stage.buckets:
        for _, drawn in dropout.of_attention(bucket, num_heads):
            tensors.append(drawn)
            stride = drawn[0].nbytes
            places += [(drawn.data_ptr() + i * stride, drawn.shape[2]) for i in range(len(drawn))]
    return tensors, np.array(places, dtype=np.int64)


def _bias(b: Tensor, stage: Stage) -> tuple[int, ...]:
    return b.data_ptr(), b.stride(0), stage.row_of_token.data_ptr()


def _gain(gain: Tensor, of_token: Tensor | None) -> tuple[int, int, int | None]:
    return gain.data_ptr(), gain.stride(0), None if of_token is None else of_token.data_ptr()


def _sums(like: Tensor, needed: bool) -> Tensor | None:
    return torch.zeros(like.shape, dtype=torch.float32) if needed else None


def _like(sums: Tensor | None, like: Tensor) -> Tensor | None:
    return None if sums is None else sums.to(like.dtype)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


_drop: Callable[..., Tensor] = _Drop.apply
_add_norm: Callable[..., Tensor] = _AddNorm.apply
_add_activate: Callable[..., Tensor] = _AddActivate.apply
_attend: Callable[..., Tensor] = _Attend.apply


@cache
def load_native(device: str, dtype: torch.dtype) -> Callable[..., NativeKernels] | None:
    """Makes kernels for a dtype; None, with a warning in the log, if they cannot be built or are wrong."""
    if device != "cpu" or dtype not in _SUFFIX or (library := find_library()) is None:
        return None
    functions = functions_of(library, _SIGNATURES, f"training_{{}}_{_SUFFIX[dtype]}")
    make = partial(NativeKernels, functions, library.level)
    if not (right := learns_as_plain(make, dtype)):
        logger.warning("the fast CPU kernels give wrong numbers on this machine, so plain PyTorch is used")
    return make if right else None
