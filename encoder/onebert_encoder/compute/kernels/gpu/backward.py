"""The backward passes of the GPU kernels as Triton programs, and dropout; importing this file needs Triton."""

# mypy: disable-error-code="untyped-decorator"

import triton
import triton.language as tl

from onebert_encoder.compute.kernels.gpu.programs import dropout_factor, normal


@triton.jit(do_not_specialize=["draw"])
def drop(
    x: tl.tensor,
    out: tl.tensor,
    row_of_token: tl.tensor,
    seeds: tl.tensor,
    place: tl.tensor,
    draw: tl.tensor,
    keep: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
) -> None:
    """Dropout, which is its own backward pass; one program: one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_BLOCK)
    inside = column < WIDTH
    factor = dropout_factor(seeds, tl.load(row_of_token + token), draw, tl.load(place + token), column, keep)
    read = tl.load(x + token * WIDTH + column, mask=inside, other=0.0)
    tl.store(out + token * WIDTH + column, (read.to(tl.float32) * factor).to(x.dtype.element_ty), mask=inside)


@triton.jit
def norm_back(
    grad: tl.tensor,
    normed: tl.tensor,
    scales: tl.tensor,
    gain: tl.tensor,
    gain_stride: tl.tensor,
    gain_of_token: tl.tensor | None,
    back: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
) -> None:
    """The gradient of what `add_norm` adds, from its `normed` numbers and their scales; one program: one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_BLOCK)
    inside = column < WIDTH
    if gain_of_token is not None:
        gain += tl.load(gain_of_token + token) * gain_stride
    g = tl.load(grad + token * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    g *= tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    n = tl.load(normed + token * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    total = (g - tl.sum(g, 0) / WIDTH - n * (tl.sum(g * n, 0) / WIDTH)) * tl.load(scales + token)
    tl.store(back + token * WIDTH + column, total.to(back.dtype.element_ty), mask=inside)


@triton.jit
def activate_back(
    grad: tl.tensor,
    z: tl.tensor,
    b: tl.tensor,
    b_stride: tl.tensor,
    row_of_token: tl.tensor,
    back: tl.tensor,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
) -> None:
    """The gradient times Φ(x) + x φ(x), the slope of gelu, at x = z + b; one program: one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_BLOCK)
    inside = column < WIDTH
    row = tl.load(row_of_token + token)
    x = tl.load(z + token * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(b + row * b_stride + column, mask=inside, other=0.0).to(tl.float32)
    slope = normal(x) + x * 0.3989422804014327 * tl.exp2(x * x * -0.7213475204444817)
    g = tl.load(grad + token * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(back + token * WIDTH + column, (g * slope).to(back.dtype.element_ty), mask=inside)


@triton.jit
def _queries(
    qkv: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    logs: tl.tensor,
    grad: tl.tensor,
    token: tl.tensor,
    is_token: tl.tensor,
    column: tl.tensor,
    in_head: tl.tensor,
    H: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Some tokens as queries: with their bias, the gradient of their context, its product with it, and their log."""
    read = is_token[:, None] & in_head
    q = tl.load(qkv + token.to(tl.int64)[:, None] * (3 * H) + column[None, :], mask=read, other=0.0)
    q = (q.to(tl.float32) + bias[None, :]).to(q.dtype)
    offset = token.to(tl.int64)[:, None] * H + column[None, :]
    g = tl.load(grad + offset, mask=read, other=0.0)
    delta = tl.sum(g.to(tl.float32) * tl.load(out + offset, mask=read, other=0.0).to(tl.float32), 1)
    return q, g, delta, tl.load(logs + token * tl.num_programs(1) + tl.program_id(1), mask=is_token, other=0.0)


@triton.jit
def _keys(
    qkv: tl.tensor, token: tl.tensor, is_token: tl.tensor, column: tl.tensor, in_head: tl.tensor, H: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Keys and values of some tokens."""
    address = qkv + token.to(tl.int64)[:, None] * (3 * H) + column[None, :]
    read = is_token[:, None] & in_head
    return tl.load(address + H, mask=read, other=0.0), tl.load(address + 2 * H, mask=read, other=0.0)


@triton.jit
def _weighed(
    q: tl.tensor,
    g: tl.tensor,
    delta: tl.tensor,
    log: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    factor: tl.tensor,
    inside: tl.tensor,
    scale: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """[queries, keys]: the dropped probabilities, and the gradient of the scores."""
    p = tl.where(inside, tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * scale - log[:, None]), 0.0)
    of_p = tl.dot(g, tl.trans(v), input_precision="ieee") * factor
    return p * factor, p * (of_p - delta[:, None])


@triton.jit(do_not_specialize=["draw"])
def attend_back(
    qkv: tl.tensor,
    b_q: tl.tensor,
    b_stride: tl.tensor,
    row_of_token: tl.tensor,
    edges: tl.tensor,
    out: tl.tensor,
    logs: tl.tensor,
    seeds: tl.tensor | None,
    place: tl.tensor | None,
    draw: tl.tensor,
    keep: tl.tensor,
    grad: tl.tensor,
    back: tl.tensor,
    scale: tl.tensor,
    H: tl.constexpr,
    D: tl.constexpr,
    D_BLOCK: tl.constexpr,
    T_BLOCK: tl.constexpr,
) -> None:
    """The gradient of `attend` (FlashAttention-2, Dao 2023, algorithm 2), `back` [tokens, 3h].

    One program: T_BLOCK tokens of one head of one sequence, first as keys, then as queries. `scale` as in `attend`.
    """
    sequence, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(edges + sequence), tl.load(edges + sequence + 1)
    if start + block * T_BLOCK >= stop:
        return
    draw = draw * tl.num_programs(1) + head
    row = tl.load(row_of_token + start)
    column = tl.arange(0, D_BLOCK)
    in_head = (column < D)[None, :]
    column += head * D
    bias = tl.load(b_q + row * b_stride + column, mask=column < head * D + D, other=0.0).to(tl.float32)
    step = tl.arange(0, T_BLOCK)
    own = start + block * T_BLOCK + step
    is_own = own < stop
    own_k, own_v = _keys(qkv, own, is_own, column, in_head, H)
    of_k = tl.zeros([T_BLOCK, D_BLOCK], tl.float32)
    of_v = tl.zeros([T_BLOCK, D_BLOCK], tl.float32)
    for first in range(0, stop - start, T_BLOCK):
        query = start + first + step
        is_query = query < stop
        q, g, delta, log = _queries(qkv, bias, out, logs, grad, query, is_query, column, in_head, H)
        factor = 1.0
        if seeds is not None:
            at = tl.load(place + query, mask=is_query, other=0)
            factor = dropout_factor(seeds, row, draw, at[:, None], (own - start)[None, :], keep)
        inside = is_query[:, None] & is_own[None, :]
        p, of_scores = _weighed(q, g, delta, log, own_k, own_v, factor, inside, scale)
        of_v += tl.dot(tl.trans(p.to(g.dtype)), g, input_precision="ieee")
        of_k += tl.dot(tl.trans(of_scores.to(q.dtype)), q, input_precision="ieee")

    own_q, own_g, own_delta, own_log = _queries(qkv, bias, out, logs, grad, own, is_own, column, in_head, H)
    if seeds is not None:
        own_at = tl.load(place + own, mask=is_own, other=0)
    of_q = tl.zeros([T_BLOCK, D_BLOCK], tl.float32)
    for first in range(0, stop - start, T_BLOCK):
        key = start + first + step
        is_key = key < stop
        k, v = _keys(qkv, key, is_key, column, in_head, H)
        factor = 1.0
        if seeds is not None:
            factor = dropout_factor(seeds, row, draw, own_at[:, None], (key - start)[None, :], keep)
        inside = is_own[:, None] & is_key[None, :]
        _, of_scores = _weighed(own_q, own_g, own_delta, own_log, k, v, factor, inside, scale)
        of_q += tl.dot(of_scores.to(k.dtype), k, input_precision="ieee")

    # The gradient of a score counts 1 / sqrt(D) of it, and `scale` is log2(e) times that.
    share = scale * 0.6931471805599453
    address = back + own.to(tl.int64)[:, None] * (3 * H) + column[None, :]
    tl.store(address, (of_q * share).to(back.dtype.element_ty), mask=is_own[:, None] & in_head)
    tl.store(address + H, (of_k * share).to(back.dtype.element_ty), mask=is_own[:, None] & in_head)
    tl.store(address + 2 * H, of_v.to(back.dtype.element_ty), mask=is_own[:, None] & in_head)
