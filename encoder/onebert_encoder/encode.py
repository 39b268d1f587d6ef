"""The encoder's forward pass, the one that trains and the one that serves: shared weights, a gathered row per sequence.

`x` is [tokens, h] and never carries the bias of the LayerNorm that made it: that bias is folded into what reads it (see
fold.py). What lies between the matrix products is computed by one of the `kernels`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.base import Base
from onebert_encoder.batch import Batch
from onebert_encoder.dropout import NO_DROPOUT, Dropout
from onebert_encoder.kernels.choose import choose_kernels
from onebert_encoder.kernels.protocol import Gain, Kernels
from onebert_encoder.linear import Linear
from onebert_encoder.rows import Rows
from onebert_encoder.stage import Stage


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
    kernels = choose_kernels(base, dropout)
    x = embed(base, rows, kernels, batch, dropout) if activations is None else activations
    for stage in batch.stages:
        if stage.source is not None:
            x = x[stage.source]
        gains, scales = own(rows.gain_of_row, stage), own(rows.scale_of_row, stage)
        for layer in stage.layers:
            x = encode_layer(base, rows, kernels, stage, gains, scales, layer, x, dropout)
    return x


def encode_layer(
    base: Base,
    rows: Rows,
    kernels: Kernels,
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
    g_LN1 = Gain(weights.g_LN1, rows.gain[:, layer, 0], gains)
    g_LN2 = Gain(weights.g_LN2, rows.gain[:, layer, 1], gains)

    qkv = project(kernels, weights.W_qkv, x, rows, stage, layer, "qkv")
    if scales is not None:
        qkv = qkv * torch.cat([torch.ones_like(s_k), s_k, s_v], dim=1).index_select(0, scales)
    context = kernels.attend(qkv, b_q, stage, base.config.num_heads)
    y = project(kernels, weights.W_m1, context, rows, stage, layer, "m1")
    if base.anatomy.family.drops_attention_output:
        y = dropout.on_tokens(y, stage)
    y = join(kernels, y, y, rows, stage, layer, "after_m1")
    x = kernels.add_norm(y, x, b_m1, stage, g_LN1, base.config.eps)

    z = project(kernels, weights.W_m2, x, rows, stage, layer, "m2")
    a = kernels.add_activate(z, b_m2, stage)
    if scales is not None:
        a = a * s_m3.index_select(0, scales)
    y = dropout.on_tokens(project(kernels, weights.W_m3, a, rows, stage, layer, "m3"), stage)
    y = join(kernels, y, y, rows, stage, layer, "after_m3")
    return kernels.add_norm(y, x, b_m3, stage, g_LN2, base.config.eps)


def embed(base: Base, rows: Rows, kernels: Kernels, batch: Batch, dropout: Dropout) -> Tensor:
    """Word, position and segment embeddings, normalized: [tokens, h]."""
    weights, stage = base.embeddings, batch.stages[0]
    word, place = F.embedding(batch.word, weights.word), F.embedding(batch.place, weights.place)
    gain = Gain(weights.g_LN0, rows.g_LN0, own(rows.gain_of_row, stage))
    x = kernels.add_norm(word, place, weights.no_bias.expand(len(rows.shift), -1), stage, gain, base.config.eps)
    x = dropout.on_tokens(x, stage)
    return x if weights.W_e is None else weights.W_e(x)


def project(kernels: Kernels, linear: Linear, x: Tensor, rows: Rows, stage: Stage, layer: int, site: str) -> Tensor:
    """x (W + BA + S)ᵀ, each run of tokens with the low-rank and sparse differences of its own row."""
    return join(kernels, linear(x), x, rows, stage, layer, site)


def join(kernels: Kernels, y: Tensor, x: Tensor, rows: Rows, stage: Stage, layer: int, site: str) -> Tensor:
    """Each run of tokens of `y`, which the caller gives up, with what the branches of its own row make of `x`."""
    joined = [
        (start, stop, found)
        for row, start, stop in stage.runs
        if (branches := rows.branches[row]) and (found := branches.get((layer, site)))
    ]
    if not joined:
        return y
    return kernels.add_branches(y, x, joined)


def own(index_of_row: Sequence[int], stage: Stage) -> Tensor | None:
    """[tokens], index into a table of gains or scales for each token, or None where every row keeps the base's."""
    indices = [index_of_row[row] for row, _, _ in stage.runs]
    if not any(indices):
        return None
    lengths = torch.tensor([stop - start for _, start, stop in stage.runs])
    return torch.tensor(indices).repeat_interleave(lengths).to(stage.row_of_token.device)
