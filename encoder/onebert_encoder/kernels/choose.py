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
    if not torch.is_grad_enabled() and not dropout.attention and base.config.activation == "gelu":
        fast = _fast(base)
        if fast is not None:
            return fast
    return PlainKernels(base.activation, dropout)


def _fast(base: Base) -> Kernels | None:
    if base.device.type == "cuda":
        return load_gpu(base.device, base.dtype, base.config.hidden_size, base.config.num_heads)
    return load_native(base.device.type, base.dtype)
