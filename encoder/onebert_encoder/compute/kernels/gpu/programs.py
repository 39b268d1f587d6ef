"""The GPU kernels as Triton programs; importing this file needs Triton.

Offsets into tables and tokens are 64 bits wide: 10,000 rows of a BERT-base have 3 · 10⁸ numbers, 10,000 rows of a
larger base more than 2³¹. Counts that differ between batches are not specialized, so nothing is compiled twice.
"""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def gelu(x: tl.tensor) -> tl.tensor:
    """x Φ(x), exact to 5e-7, by Abramowitz and Stegun 1964, 7.1.26, whose polynomial is the lower tail."""
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    p = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * p * tl.exp2(z * z * -1.4426950408889634)
    return x * tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit(do_not_specialize=["num_sequences", "num_tokens"])
def attend(
    qkv: tl.tensor,
    b_q: tl.tensor,
    b_stride: tl.tensor,
    row_of_token: tl.tensor,
    edges: tl.tensor,
    out: tl.tensor,
    num_sequences: tl.tensor,
    num_tokens: tl.tensor,
    scale: tl.tensor,
    H: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    T_BLOCK: tl.constexpr,
) -> None:
    """Attention with an online softmax (FlashAttention-2, Dao 2023, algorithm 1).

    One program: T_BLOCK queries of one head of one sequence. The filling is one more sequence, without keys. `scale` is
    log2(e) / sqrt(D), since the softmax uses powers of two.
    """
    sequence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(edges + sequence)
    stop = tl.load(edges + sequence + 1, mask=sequence < num_sequences, other=num_tokens)
    if start + block * T_BLOCK >= stop:
        return
    num_keys = tl.where(sequence < num_sequences, stop - start, 0)
    column = tl.arange(0, D_BLOCK)
    in_head = (column < D)[None, :]
    step = tl.arange(0, T_BLOCK)
    column += head * D

    query = start + block * T_BLOCK + step
    is_query = (query < stop)[:, None] & in_head
    offset = query.to(tl.int64)[:, None] * H + column[None, :]
    row = tl.load(row_of_token + start)
    bias = tl.load(b_q + row * b_stride + column, mask=column < head * D + D, other=0.0).to(tl.float32)
    q = tl.load(qkv + query.to(tl.int64)[:, None] * (3 * H) + column[None, :], mask=is_query, other=0.0)
    q = (q.to(tl.float32) + bias[None, :]).to(q.dtype)

    highest = tl.full([T_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([T_BLOCK], tl.float32)
    context = tl.zeros([T_BLOCK, D_BLOCK], tl.float32)
    for first in range(0, num_keys, T_BLOCK):
        key = first + step
        is_key = key < num_keys
        address = qkv + (start + key).to(tl.int64)[:, None] * (3 * H) + column[None, :]
        k = tl.load(address + H, mask=is_key[:, None] & in_head, other=0.0)
        v = tl.load(address + 2 * H, mask=is_key[:, None] & in_head, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        p = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(p, 1)
        context = context * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        highest = higher
    # The highest score adds 2^0 = 1 to the total, so a total below 1 means no keys; the context is then zero.
    total = tl.maximum(total, 1.0)
    context = context / total[:, None]
    tl.store(out + offset, context.to(out.dtype.element_ty), mask=is_query)


@triton.jit
def add_norm(
    y: tl.tensor,
    x: tl.tensor,
    b: tl.tensor,
    b_stride: tl.tensor,
    row_of_token: tl.tensor,
    gain: tl.tensor,
    gain_stride: tl.tensor,
    gain_of_token: tl.tensor | None,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
) -> None:
    """y becomes the LayerNorm without bias of y + x + b; one program: one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_BLOCK)
    inside = column < WIDTH
    address = y + token * WIDTH + column
    row = tl.load(row_of_token + token)
    total = tl.load(address, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(x + token * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(b + row * b_stride + column, mask=inside, other=0.0).to(tl.float32)
    centered = tl.where(inside, total - tl.sum(total, 0) / WIDTH, 0.0)
    normed = centered * tl.rsqrt(tl.sum(centered * centered, 0) / WIDTH + eps)
    if gain_of_token is not None:
        gain += tl.load(gain_of_token + token) * gain_stride
    normed *= tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(address, normed.to(y.dtype.element_ty), mask=inside)


@triton.jit
def add_activate(
    z: tl.tensor,
    b: tl.tensor,
    b_stride: tl.tensor,
    row_of_token: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
) -> None:
    """z becomes gelu(z + b); one program: one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_BLOCK)
    inside = column < WIDTH
    address = z + token * WIDTH + column
    row = tl.load(row_of_token + token)
    total = tl.load(address, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(b + row * b_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(address, gelu(total).to(z.dtype.element_ty), mask=inside)
