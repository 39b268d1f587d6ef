"""Which kernels compute a batch: the one place that decides."""

import torch

from onebert_encoder.base import Base
from onebert_encoder.dropout import Dropout
from onebert_encoder.kernels.gpu import load_gpu
from onebert_encoder.kernels.native import load_native
from onebert_encoder.kernels.plain import PlainKernels
from onebert_encoder.kernels.protocol import Kernels


def choose_kernels(base: Base, dropout: Dropout) -> Kernels:
    """The fastest that can do it: only the plain ones have gradients, dropout and every activation."""
    if torch.is_grad_enabled() or dropout.attention:
        return PlainKernels(base.activation, dropout)
    return answering_kernels(base)


def answering_kernels(base: Base) -> Kernels:
    """Those that compute answers, without gradient and dropout."""
    fast = _fast(base) if base.config.activation == "gelu" else None
    return PlainKernels(base.activation) if fast is None else fast


def _fast(base: Base) -> Kernels | None:
    if base.device.type == "cuda":
        return load_gpu(base.device, base.dtype, base.config.hidden_size, base.config.num_heads)
    return load_native(base.device.type, base.dtype)
