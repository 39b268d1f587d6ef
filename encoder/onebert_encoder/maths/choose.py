"""The one file that decides which kernels compute a batch."""

from operator import is_
from weakref import WeakKeyDictionary

import torch

from onebert_encoder.base.base import Base, EmbeddingWeights, LayerWeights
from onebert_encoder.compute.kernels.gpu.choice import Shape, load_gpu
from onebert_encoder.compute.kernels.native import load_native
from onebert_encoder.compute.kernels.plain import PlainKernels
from onebert_encoder.compute.kernels.products import load_products
from onebert_encoder.compute.kernels.protocol import Kernels
from onebert_encoder.compute.kernels.training import TrainingKernels, load_training
from onebert_encoder.layout.dropout import Dropout
from onebert_encoder.maths.forward import Forward, packed_weights
from onebert_encoder.maths.gpu_heads import load_heads
from onebert_encoder.maths.heads import HeadKernels

# The most inputs that one instruction multiplies; a pass in one call reads tokens that are multiples of these.
_GROUP = 4

# Of a layer: W_qkv, W_m1, W_m2 and W_m3.
_PRODUCTS = 4

_Weights = tuple[EmbeddingWeights | LayerWeights, ...]
_FORWARDS: "WeakKeyDictionary[Base, tuple[_Weights, Forward | None]]" = WeakKeyDictionary()


def choose_forward(base: Base, dropout: Dropout) -> Forward | None:
    """The forward pass in one call; None where it goes operation by operation, as with gradients or dropout."""
    if torch.is_grad_enabled() or dropout.attention or dropout.hidden:
        return None
    of, forward = _FORWARDS.get(base, ((), None))
    weights: _Weights = (base.embeddings, *base.layers)
    # A base whose embeddings or layers were exchanged is another one.
    if len(of) != len(weights) or not all(map(is_, of, weights)):
        forward = _forward(base)
        _FORWARDS[base] = weights, forward
    return forward


def choose_kernels(base: Base, dropout: Dropout) -> Kernels:
    """The fastest kernels that can compute the pass; only the plain ones take every activation."""
    if torch.is_grad_enabled() or dropout.attention or dropout.hidden:
        functions = load_training(base.device.type, base.dtype) if base.config.activation == "gelu" else None
        return PlainKernels(base.activation, dropout) if functions is None else TrainingKernels(functions, dropout)
    return answering_kernels(base)


def answering_kernels(base: Base) -> Kernels:
    """The fastest kernels for answers, without gradients and dropout."""
    fast = _fast(base) if base.config.activation == "gelu" else None
    return PlainKernels(base.activation) if fast is None else fast


def choose_heads(base: Base) -> HeadKernels | None:
    """Kernels that pool and classify faster than PyTorch; None where there are none, or gradients are needed."""
    if torch.is_grad_enabled() or base.device.type != "cuda":
        return None
    return load_heads(base.device)


def _fast(base: Base) -> Kernels | None:
    if base.device.type == "cuda":
        config = base.config
        shape = Shape(base.device, base.dtype, config.hidden_size, config.num_heads, config.intermediate_size)
        return load_gpu(shape, base.batch_invariant)
    return load_native(base.device.type, base.dtype)


def _forward(base: Base) -> Forward | None:
    products = load_products(base.device.type, base.precision)
    packed = [weight.numbers.dtype for layer in base.layers for weight in packed_weights(layer)]
    if products is None or packed != [base.precision] * (_PRODUCTS * len(base.layers)):
        return None
    # A word table that was made to be trained is in float32, whatever the rest is in.
    if base.embeddings.word.dtype != base.dtype:
        return None
    whole = base.config.hidden_size % _GROUP == 0 and base.config.intermediate_size % _GROUP == 0
    if not whole or base.config.activation != "gelu" or base.anatomy.has_projection:
        return None
    return Forward(base, products)
