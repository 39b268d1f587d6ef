"""The encoder's forward pass, the one that trains and the one that serves: shared weights, a gathered row per sequence.

`x` is [tokens, h] and never carries the bias of the LayerNorm that made it: that bias is folded into what reads it (see
fold.py). Adding in place is safe under autograd here, because no operation keeps the outputs that are added to.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.base import Base
from onebert_encoder.batch import Batch, Bucket, Stage
from onebert_encoder.fold import Rows
from onebert_encoder.linear import FrozenLinear

# Up to this length plain matrix products beat fused attention on CPU; beyond it their scores cost too much memory.
_PLAIN_ATTENTION_LENGTH = 256


@dataclass(frozen=True)
class Dropout:
    """Probabilities for training: on the sublayers' outputs without their biases, and on attention.

    docs/decisions/0003-dropout.md says why the biases are spared.
    """

    hidden: float
    attention: float


NO_DROPOUT = Dropout(0.0, 0.0)


def encode(base: Base, rows: Rows, batch: Batch, dropout: Dropout = NO_DROPOUT) -> Tensor:
    """Runs every sequence of a batch through the base with its own row.

    Returns:
        [tokens, h] in the compute dtype: the last stage's tokens, without the bias of the last LayerNorm, which
        `fold` has moved into the head.
    """
    x = embed(base, rows, batch, dropout)
    for stage in batch.stages:
        if stage.source is not None:
            x = x[stage.source]
        gains = own_gains(rows, stage)
        for layer in stage.layers:
            x = encode_layer(base, rows, stage, gains, layer, x, dropout)
    return x


def encode_layer(
    base: Base, rows: Rows, stage: Stage, gains: Tensor | None, layer: int, x: Tensor, dropout: Dropout
) -> Tensor:
    """One layer: BitFit's equations 1 to 5 with the folded vectors in place of the eight biases."""
    weights, h = base.layers[layer], base.config.hidden_size
    b_q, b_m1, b_m3, b_m2 = torch.split(rows.shift[:, layer], [h, h, h, base.config.intermediate_size], dim=1)
    of_token = stage.row_of_token

    qkv = project(weights.W_qkv, x, rows, stage, layer, "qkv")
    qkv[:, :h] += b_q.index_select(0, of_token)
    context = attend(base, stage, qkv, dropout.attention)
    y = project(weights.W_m1, context, rows, stage, layer, "m1")
    if base.anatomy.family.drops_attention_output:
        y = F.dropout(y, dropout.hidden)
    y += x
    y += b_m1.index_select(0, of_token)
    x = normalize(y, weights.g_LN1, rows.gain[:, layer, 0], gains, base.config.eps)

    z = project(weights.W_m2, x, rows, stage, layer, "m2")
    z += b_m2.index_select(0, of_token)
    y = F.dropout(project(weights.W_m3, base.activation(z), rows, stage, layer, "m3"), dropout.hidden)
    y += x
    y += b_m3.index_select(0, of_token)
    return normalize(y, weights.g_LN2, rows.gain[:, layer, 1], gains, base.config.eps)


def embed(base: Base, rows: Rows, batch: Batch, dropout: Dropout) -> Tensor:
    """Word, position and segment embeddings, normalized: [tokens, h]."""
    weights = base.embeddings
    x = F.embedding(batch.word, weights.word) + F.embedding(batch.place, weights.place)
    x = normalize(x, weights.g_LN0, rows.g_LN0, own_gains(rows, batch.stages[0]), base.config.eps)
    x = F.dropout(x, dropout.hidden)
    return x if weights.W_e is None else weights.W_e(x)


def project(linear: FrozenLinear, x: Tensor, rows: Rows, stage: Stage, layer: int, site: str) -> Tensor:
    """x (W + BA)ᵀ, each run of tokens with the low-rank difference of its own row."""
    y = linear(x)
    for row, start, stop in stage.runs:
        low_rank = rows.lora[row].get((layer, site))
        if low_rank is not None:
            A, B = low_rank
            y[start:stop] += x[start:stop] @ A.T @ B.T
    return y


def own_gains(rows: Rows, stage: Stage) -> Tensor | None:
    """[tokens], index into the gains of `rows` for each token, or None where every row keeps the base's."""
    gains = [rows.gain_of_row[row] for row, _, _ in stage.runs]
    if not any(gains):
        return None
    lengths = torch.tensor([stop - start for _, start, stop in stage.runs])
    return torch.tensor(gains).repeat_interleave(lengths).to(rows.shift.device)


def normalize(x: Tensor, base_gain: Tensor, gains: Tensor, gain_of_token: Tensor | None, eps: float) -> Tensor:
    """LayerNorm without bias, with the base's gain [h], or with each token's own of `gains` [gains, h]."""
    if gain_of_token is None:
        return F.layer_norm(x, base_gain.shape, base_gain, None, eps)
    return F.layer_norm(x, base_gain.shape, None, None, eps) * gains.index_select(0, gain_of_token)


def attend(base: Base, stage: Stage, qkv: Tensor, dropout: float) -> Tensor:
    """Attention within each sequence: [tokens, 3h] -> [tokens, h], padded only inside a bucket."""
    parts = [attend_bucket(base, bucket, qkv[bucket.start : bucket.stop], dropout) for bucket in stage.buckets]
    return torch.cat([*parts, qkv.new_zeros(stage.filling, base.config.hidden_size)])


def attend_bucket(base: Base, bucket: Bucket, qkv: Tensor, dropout: float) -> Tensor:
    """Attention over sequences of similar length: [tokens, 3h] -> [tokens, h]."""
    heads, h = base.config.num_heads, base.config.hidden_size
    slots = bucket.count * bucket.length
    if bucket.slots is not None:
        qkv = qkv.new_zeros(slots, 3 * h).index_copy(0, bucket.slots, qkv)
    q, k, v = qkv.view(bucket.count, bucket.length, 3, heads, h // heads).permute(2, 0, 3, 1, 4)
    if qkv.device.type != "cpu" or bucket.length > _PLAIN_ATTENTION_LENGTH:
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=bucket.mask, dropout_p=dropout)
    else:
        scores = (q * (h // heads) ** -0.5) @ k.transpose(-1, -2)
        if bucket.mask is not None:
            scores += bucket.mask
        context = F.dropout(scores.softmax(-1), dropout) @ v
    context = context.transpose(1, 2).reshape(slots, h)
    return context if bucket.slots is None else context.index_select(0, bucket.slots)
