"""The GPU kernels with gradients and dropout: one launch each way, sums in float32, attention without padding."""

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.compute.kernels.gpu.kernels import block_of, power_of_two, warps_of
from onebert_encoder.compute.kernels.plain import Gain, PlainKernels
from onebert_encoder.compute.scores import PLAIN_SCORES, Own, Scores
from onebert_encoder.layout.dropout import Dropout
from onebert_encoder.layout.stage import Stage


class Drawn(NamedTuple):
    """One drawing of dropout: seeds of rows, places of tokens in their rows, its number, and the share that is kept.

    Without seeds nothing is dropped. Each drawing of a pass has its own number, below 0 for tokens.
    """

    seeds: Tensor | None
    place: Tensor | None
    draw: int
    keep: float


class GpuTraining(PlainKernels):
    """The plain kernels' operations for one pass; a row drops the same numbers alone and next to other rows."""

    name = "gpu"

    def __init__(self, dropout: Dropout) -> None:
        from onebert_encoder.compute.kernels.gpu import backward, programs  # noqa: PLC0415

        super().__init__(F.gelu, dropout)
        self._programs, self._backward = programs, backward
        self._attention, self._tokens = count(0), count(-1, -1)
        self._place: Tensor | None = None

    def attend(
        self,
        qkv: Tensor,
        b_q: Tensor,
        stage: Stage,
        num_heads: int,
        scores: Scores = PLAIN_SCORES,
        own: Sequence[Own] = (),
    ) -> Tensor:
        drawn = self._drawn(self._dropout.attention, self._attention, stage)
        programs = self._programs.attend, self._backward.attend_back
        return _attend(qkv.contiguous(), b_q, *programs, stage, num_heads, drawn)

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
        table = gain.shared[None] if gain.of_token is None else gain.table
        programs = self._programs.add_norm, self._backward.norm_back
        return _add_norm(y.contiguous(), x.contiguous(), b, table, *programs, stage, gain.of_token, eps)

    def add_activate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        return _add_activate(z.contiguous(), b, self._programs.add_activate, self._backward.activate_back, stage)

    def drop(self, x: Tensor, stage: Stage) -> Tensor:
        drawn = self._drawn(self._dropout.hidden, self._tokens, stage)
        return x if drawn.seeds is None else _drop(x.contiguous(), self._backward.drop, stage, drawn)

    def _drawn(self, share: float, numbers: "count[int]", stage: Stage) -> Drawn:
        if not share:
            return Drawn(None, None, 0, 1.0)
        if self._place is None:
            self._place = _places(stage)
        return Drawn(self._dropout.seeds, self._place, next(numbers), 1 - share)


def _places(stage: Stage) -> Tensor:
    """[tokens] int32, the number of each token in its row; the filling's do not matter."""
    rows = torch.arange(int(stage.rows.max()) + 1, device=stage.row_of_token.device)
    before = (stage.row_of_token[:, None] == rows).cumsum(0, dtype=torch.int32) - 1
    return before.gather(1, stage.row_of_token[:, None])[:, 0]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, b_q: Tensor, forward: Any, backward: Any, stage: Stage, num_heads: int, drawn: Drawn
    ) -> Tensor:
        tokens, h, sequences = len(qkv), b_q.shape[1], len(stage.lengths)
        d, block = h // num_heads, block_of(qkv)
        out = qkv.new_empty(tokens, h)
        logs = qkv.new_empty(tokens, num_heads, dtype=torch.float32)
        blocks = -(-max(int(stage.lengths.max()), stage.filling) // block)
        scale, shape = math.log2(math.e) * d**-0.5, (h, d, max(16, power_of_two(d)), block)
        with torch.cuda.device_of(qkv):
            forward[(sequences + 1, num_heads, blocks)](
                *(qkv, b_q, b_q.stride(0), stage.row_of_token, stage.edges, out, logs, *drawn),
                *(sequences, tokens, scale, *shape),
            )
        ctx.save_for_backward(qkv, b_q, out, logs)
        ctx.launch = backward[(sequences, num_heads, blocks)]
        ctx.stage, ctx.drawn, ctx.shape = stage, drawn, (scale, *shape)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv, b_q, out, logs = ctx.saved_tensors
        back = torch.zeros_like(qkv)
        with torch.cuda.device_of(qkv):
            ctx.launch(
                *(qkv, b_q, b_q.stride(0), ctx.stage.row_of_token, ctx.stage.edges, out, logs, *ctx.drawn),
                *(grads[0].contiguous(), back, *ctx.shape),
            )
        of_b = _of_rows(back[:, : b_q.shape[1]], ctx.stage.row_of_token, b_q) if ctx.needs_input_grad[1] else None
        return back, of_b, None, None, None, None, None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        x: Tensor,
        b: Tensor,
        table: Tensor,
        forward: Any,
        backward: Any,
        stage: Stage,
        of_token: Tensor | None,
        eps: float,
    ) -> Tensor:
        (tokens, h), block = y.shape, power_of_two(y.shape[1])
        out, normed, scales = torch.empty_like(y), torch.empty_like(y), y.new_empty(tokens, dtype=torch.float32)
        with torch.cuda.device_of(y):
            forward[(tokens,)](
                *(y, x, b, b.stride(0), stage.row_of_token, table, table.stride(0), of_token, out, normed, scales),
                *(eps, h, block),
                num_warps=warps_of(block),
            )
        ctx.save_for_backward(normed, scales, b, table)
        ctx.launch, ctx.stage, ctx.of_token = backward[(tokens,)], stage, of_token
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normed, scales, b, table = ctx.saved_tensors
        grad, (_, _, of_b, of_table) = grads[0].contiguous(), ctx.needs_input_grad[:4]
        back, (h, block) = torch.empty_like(normed), (normed.shape[1], power_of_two(normed.shape[1]))
        with torch.cuda.device_of(normed):
            ctx.launch(
                *(grad, normed, scales, table, table.stride(0), ctx.of_token, back, h, block),
                num_warps=warps_of(block),
            )
        return (
            back,
            back,
            _of_rows(back, ctx.stage.row_of_token, b) if of_b else None,
            _of_rows(grad.float() * normed, ctx.of_token, table) if of_table else None,
            *[None] * 5,
        )


class _AddActivate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, b: Tensor, forward: Any, backward: Any, stage: Stage) -> Tensor:
        (tokens, f), block = z.shape, power_of_two(z.shape[1])
        out = torch.empty_like(z)
        with torch.cuda.device_of(z):
            forward[(tokens,)](z, b, b.stride(0), stage.row_of_token, out, f, block, num_warps=warps_of(block))
        ctx.save_for_backward(z, b)
        ctx.launch, ctx.stage = backward[(tokens,)], stage
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, b = ctx.saved_tensors
        back, block = torch.empty_like(z), power_of_two(z.shape[1])
        with torch.cuda.device_of(z):
            ctx.launch(
                *(grads[0].contiguous(), z, b, b.stride(0), ctx.stage.row_of_token, back, z.shape[1], block),
                num_warps=warps_of(block),
            )
        of_b = _of_rows(back, ctx.stage.row_of_token, b) if ctx.needs_input_grad[1] else None
        return back, of_b, None, None, None


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, program: Any, stage: Stage, drawn: Drawn) -> Tensor:
        ctx.of = program, stage, drawn
        return _dropped(x, *ctx.of)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _dropped(grads[0].contiguous(), *ctx.of), None, None, None


def _dropped(x: Tensor, program: Any, stage: Stage, drawn: Drawn) -> Tensor:
    out, block = torch.empty_like(x), power_of_two(x.shape[1])
    with torch.cuda.device_of(x):
        program[(len(x),)](x, out, stage.row_of_token, *drawn, x.shape[1], block, num_warps=warps_of(block))
    return out


def _of_rows(grad: Tensor, row_of_token: Tensor | None, table: Tensor) -> Tensor:
    """The gradient of a table [rows, width] from its tokens' [tokens, width], in float32 until it is cast."""
    if len(table) == 1 or row_of_token is None:
        return grad.sum(0, keepdim=True, dtype=torch.float32).to(table.dtype)
    found = torch.zeros(table.shape, dtype=torch.float32, device=table.device)
    return found.index_add_(0, row_of_token, grad.float()).to(table.dtype)


_attend: Callable[..., Tensor] = _Attend.apply
_add_norm: Callable[..., Tensor] = _AddNorm.apply
_add_activate: Callable[..., Tensor] = _AddActivate.apply
_drop: Callable[..., Tensor] = _Drop.apply
