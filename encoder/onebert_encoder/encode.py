"""The encoder's forward pass, the one that trains and the one that serves: shared weights, a gathered row per sequence.

`x` is [tokens, h] and never carries the bias of the LayerNorm that made it: that bias is folded into what reads it (see
fold.py). Adding in place is safe under autograd here, because no operation keeps the outputs that are added to.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.base import Base
from onebert_encoder.batch import Batch, Bucket, Stage
from onebert_encoder.dropout import NO_DROPOUT, Dropout
from onebert_encoder.join import join, project
from onebert_encoder.rows import Rows

# Up to this length plain matrix products beat fused attention on CPU; beyond it their scores cost too much memory.
_PLAIN_ATTENTION_LENGTH = 256


def encode(
    base: Base, rows: Rows, batch: Batch, dropout: Dropout = NO_DROPOUT, activations: Tensor | None = None
) -> Tensor:
    """Runs every sequence of a batch through the base with its own row.

    Args:
        base: the frozen encoder.
        rows: what `batch` indexes.
        batch: the packed sequences.
        dropout: for training.
        activations: [tokens, h], of the inputs laid end to end, where the batch enters above the embeddings.

    Returns:
        [tokens, h] in the compute dtype: the last stage's tokens, without the bias of the last LayerNorm, which
        `fold` has moved into the head.
    """
    x = embed(base, rows, batch, dropout) if activations is None else activations
    for stage in batch.stages:
        if stage.source is not None:
            x = x[stage.source]
        gains, scales = own(rows.gain_of_row, stage), own(rows.scale_of_row, stage)
        for layer in stage.layers:
            x = encode_layer(base, rows, stage, gains, scales, layer, x, dropout)
    return x


def encode_layer(
    base: Base,
    rows: Rows,
    stage: Stage,
    gains: Tensor | None,
    scales: Tensor | None,
    layer: int,
    x: Tensor,
    dropout: Dropout,
) -> Tensor:
    """One layer: BitFit's equations 1 to 5 with the folded vectors in place of the eight biases."""
    weights, h, f = base.layers[layer], base.config.hidden_size, base.config.intermediate_size
    b_q, b_m1, b_m3, b_m2 = torch.split(rows.shift[:, layer], [h, h, h, f], dim=1)
    s_k, s_v, s_m3 = torch.split(rows.scale[:, layer], [h, h, f], dim=1)
    of_token = stage.row_of_token

    qkv = project(weights.W_qkv, x, rows, stage, layer, "qkv")
    qkv[:, :h] += b_q.index_select(0, of_token)
    if scales is not None:
        qkv = qkv * torch.cat([s_k, torch.ones_like(s_k), s_v], dim=1).index_select(0, scales)
    context = attend(base, stage, qkv, dropout)
    y = project(weights.W_m1, context, rows, stage, layer, "m1")
    if base.anatomy.family.drops_attention_output:
        y = dropout.on_tokens(y, stage)
    y = join(y, y, rows, stage, layer, "after_m1")
    y += x
    y += b_m1.index_select(0, of_token)
    x = normalize(y, weights.g_LN1, rows.gain[:, layer, 0], gains, base.config.eps)

    z = project(weights.W_m2, x, rows, stage, layer, "m2")
    z += b_m2.index_select(0, of_token)
    a = base.activation(z)
    if scales is not None:
        a = a * s_m3.index_select(0, scales)
    y = dropout.on_tokens(project(weights.W_m3, a, rows, stage, layer, "m3"), stage)
    y = join(y, y, rows, stage, layer, "after_m3")
    y += x
    y += b_m3.index_select(0, of_token)
    return normalize(y, weights.g_LN2, rows.gain[:, layer, 1], gains, base.config.eps)


def embed(base: Base, rows: Rows, batch: Batch, dropout: Dropout) -> Tensor:
    """Word, position and segment embeddings, normalized: [tokens, h]."""
    weights = base.embeddings
    x = F.embedding(batch.word, weights.word) + F.embedding(batch.place, weights.place)
    x = normalize(x, weights.g_LN0, rows.g_LN0, own(rows.gain_of_row, batch.stages[0]), base.config.eps)
    x = dropout.on_tokens(x, batch.stages[0])
    return x if weights.W_e is None else weights.W_e(x)


def own(index_of_row: Sequence[int], stage: Stage) -> Tensor | None:
    """[tokens], index into a table of gains or scales for each token, or None where every row keeps the base's."""
    indices = [index_of_row[row] for row, _, _ in stage.runs]
    if not any(indices):
        return None
    lengths = torch.tensor([stop - start for _, start, stop in stage.runs])
    return torch.tensor(indices).repeat_interleave(lengths).to(stage.row_of_token.device)


def normalize(x: Tensor, base_gain: Tensor, gains: Tensor, gain_of_token: Tensor | None, eps: float) -> Tensor:
    """LayerNorm without bias, with the base's gain [h], or with each token's own of `gains` [gains, h]."""
    if gain_of_token is None:
        return F.layer_norm(x, base_gain.shape, base_gain, None, eps)
    return F.layer_norm(x, base_gain.shape, None, None, eps) * gains.index_select(0, gain_of_token)


def attend(base: Base, stage: Stage, qkv: Tensor, dropout: Dropout) -> Tensor:
    """Attention within each sequence: [tokens, 3h] -> [tokens, h], padded only inside a bucket."""
    parts = [attend_bucket(base, bucket, qkv[bucket.start : bucket.stop], dropout) for bucket in stage.buckets]
    return torch.cat([*parts, qkv.new_zeros(stage.filling, base.config.hidden_size)])


def attend_bucket(base: Base, bucket: Bucket, qkv: Tensor, dropout: Dropout) -> Tensor:
    """Attention over sequences of similar length: [tokens, 3h] -> [tokens, h]."""
    heads, h = base.config.num_heads, base.config.hidden_size
    slots = bucket.count * bucket.length
    if bucket.slots is not None:
        qkv = qkv.new_zeros(slots, 3 * h).index_copy(0, bucket.slots, qkv)
    q, k, v = qkv.view(bucket.count, bucket.length, 3, heads, h // heads).permute(2, 0, 3, 1, 4)
    # Fused attention has a dropout of its own, which does not know whose sequence it is.
    if not dropout.attention and (qkv.device.type != "cpu" or bucket.length > _PLAIN_ATTENTION_LENGTH):
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=bucket.mask)
    else:
        scores = (q * (h // heads) ** -0.5) @ k.transpose(-1, -2)
        if bucket.mask is not None:
            scores += bucket.mask
        context = dropout.on_attention(scores.softmax(-1), bucket) @ v
    context = context.transpose(1, 2).reshape(slots, h)
    return context if bucket.slots is None else context.index_select(0, bucket.slots)
