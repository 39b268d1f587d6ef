"""Pooling and classifiers as Triton programs (import needs Triton); float32 sums have one order in every batch."""

# mypy: disable-error-code="untyped-decorator"

from enum import IntEnum

import triton
import triton.language as tl


class Reader(IntEnum):
    """The fields of a reader, the record of one sequence's head: addresses of its matrices, offset of its logits."""

    WEIGHT = 0
    BIAS = 1
    LABELS = 2
    LOGITS = 3


_WEIGHT = tl.constexpr(Reader.WEIGHT.value)
_BIAS = tl.constexpr(Reader.BIAS.value)
_LABELS = tl.constexpr(Reader.LABELS.value)
_LOGITS = tl.constexpr(Reader.LOGITS.value)
_FIELDS = tl.constexpr(len(Reader))


@triton.jit
def pool(
    x: tl.tensor, spans: tl.tensor, pooled: tl.tensor, WIDTH: tl.constexpr, T_BLOCK: tl.constexpr, C_BLOCK: tl.constexpr
) -> None:
    """The mean over the tokens of a span (first, count); one program: C_BLOCK columns of one sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    first, length = tl.load(spans + 2 * sequence), tl.load(spans + 2 * sequence + 1)
    column = tl.program_id(1) * C_BLOCK + tl.arange(0, C_BLOCK)
    inside = column < WIDTH
    total = tl.zeros([C_BLOCK], tl.float32)
    for begin in range(0, length, T_BLOCK):
        index = begin + tl.arange(0, T_BLOCK)
        part = x + (first + index)[:, None] * WIDTH + column[None, :]
        total += tl.sum(tl.load(part, mask=(index < length)[:, None] & inside[None, :], other=0.0).to(tl.float32), 0)
    tl.store(pooled + sequence * WIDTH + column, total / length.to(tl.float32), mask=inside)


@triton.jit
def classify(
    readers: tl.tensor,
    pooled: tl.tensor,
    logits: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    L_BLOCK: tl.constexpr,
) -> None:
    """The logits of each sequence by its task's head; one program: L_BLOCK labels of one sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    reader = readers + sequence * _FIELDS
    labels = tl.load(reader + _LABELS)
    label = tl.program_id(1) * L_BLOCK + tl.arange(0, L_BLOCK)
    if tl.program_id(1) * L_BLOCK >= labels:
        return
    column = tl.arange(0, WIDTH_BLOCK)
    inside, is_label = column < WIDTH, label < labels
    vector = tl.load(pooled + sequence * WIDTH + column, mask=inside, other=0.0)
    rows = tl.load(reader + _WEIGHT).to(tl.pointer_type(tl.float32)) + label.to(tl.int64)[:, None] * WIDTH
    weight = tl.load(rows + column[None, :], mask=is_label[:, None] & inside[None, :], other=0.0)
    bias = tl.load(tl.load(reader + _BIAS).to(tl.pointer_type(tl.float32)) + label, mask=is_label, other=0.0)
    total = tl.sum(weight * vector[None, :], 1) + bias
    tl.store(logits + tl.load(reader + _LOGITS) + label, total, mask=is_label)
