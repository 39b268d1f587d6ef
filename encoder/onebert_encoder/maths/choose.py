"""Decides which kernels compute a batch; no other file does."""

from operator import is_
from weakref import WeakKeyDictionary

import torch

from onebert_encoder.base.base import Base, EmbeddingWeights
from onebert_encoder.blocks.running import LayerWeights
from onebert_encoder.blocks.sublayers import Sublayers
from onebert_encoder.compute.kernels.gpu.load import Shape, load_gpu
from onebert_encoder.compute.kernels.native import load_native
from onebert_encoder.compute.kernels.plain import PlainKernels
from onebert_encoder.compute.kernels.products import GROUP_BYTES, load_products
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout
from onebert_encoder.maths.forward import Forward, packed_weights
from onebert_encoder.maths.gpu_heads import GpuHeads, load_heads

_Weights = tuple[EmbeddingWeights | LayerWeights, ...]
_FORWARDS: "WeakKeyDictionary[Base, tuple[_Weights, Forward | None]]" = WeakKeyDictionary()


def choose_forward(base: Base, dropout: Dropout) -> Forward | None:
    """The forward pass in one call; None with gradients or dropout, or if the base does not support it."""
    return None if torch.is_grad_enabled() or dropout.attention or dropout.hidden else _one_call(base)


def _one_call(base: Base) -> Forward | None:
    of, forward = _FORWARDS.get(base, ((), None))
    weights: _Weights = (base.embeddings, *base.layers)
    # A cached pass is valid only for the same embeddings and layers.
    if len(of) != len(weights) or not all(map(is_, of, weights)):
        forward = _forward(base)
        _FORWARDS[base] = weights, forward
    return forward


def choose_kernels(base: Base, dropout: Dropout) -> PlainKernels:
    """The fastest kernels for the pass; the plain ones support every activation."""
    if not (torch.is_grad_enabled() or dropout.attention or dropout.hidden):
        return answering_kernels(base)
    return _on_cpu(base, dropout)


def answering_kernels(base: Base) -> PlainKernels:
    """The fastest kernels for answers, without gradients and dropout."""
    if base.device.type != "cuda" or not _compiled(base):
        return _on_cpu(base, NO_DROPOUT)
    config = base.config
    shape = Shape(base.device, base.dtype, config.hidden_size, config.num_heads, config.intermediate_size)
    return load_gpu(shape) or _on_cpu(base, NO_DROPOUT)


def goes_in_one_call(base: Base) -> bool:
    """Whether answers are computed by a forward pass in one call."""
    return _one_call(base) is not None


def rounds_alike(base: Base) -> bool:
    """Whether answers have the same bits in every batch, provided that the base is batch-invariant."""
    return goes_in_one_call(base) or answering_kernels(base).batch_invariant


def choose_heads(base: Base) -> type[GpuHeads] | None:
    """Faster kernels than PyTorch's for pooling and classifying; None on a CPU or with gradients."""
    if torch.is_grad_enabled() or base.device.type != "cuda":
        return None
    return load_heads(base.device)


def _on_cpu(base: Base, dropout: Dropout) -> PlainKernels:
    """Compiled kernels on a CPU, else the plain ones, on any device."""
    make = load_native(base.device.type, base.dtype) if _compiled(base) else None
    centered = base.anatomy.family.centered
    plain = PlainKernels(base.activation, dropout, centered)
    kernels = plain if make is None else make(dropout, base.activation, centered)
    kernels.apart = base.batch_invariant
    return kernels


def _compiled(base: Base) -> bool:
    """Whether fast kernels have the base's activation, layers and scores; on a GPU BERT's alone."""
    family, activation = base.anatomy.family, base.config.activation
    if base.device.type != "cpu":
        return activation == "gelu" and (family.block, family.scores) == ("post_norm", "none")
    return activation in ("gelu", "silu") and family.scores in ("none", "relative", "rotary", "disentangled")


def _forward(base: Base) -> Forward | None:
    products, block = load_products(base.device.type, base.precision), base.anatomy.block
    # The layers of other blocks and with DeBERTa's scores go operation by operation.
    if not isinstance(block, Sublayers) or base.anatomy.family.scores == "disentangled":
        return None
    if products is None or not _compiled(base):
        return None
    packed = [weight.numbers.dtype for layer in base.layers for weight in packed_weights(layer)]
    if packed != [base.precision] * sum(len(layer.W) for layer in base.layers):
        return None
    # A trainable base keeps its word table in float32, whatever its dtype.
    if base.embeddings.word.dtype != base.dtype:
        return None
    # The pass in one call reads whole groups of inputs, as one instruction multiplies them.
    group = GROUP_BYTES // base.precision.itemsize
    fits = base.config.hidden_size % group == 0 and base.config.intermediate_size % group == 0
    return Forward(base, block, products) if fits else None
