"""Which kernels compute a batch: the one place that decides."""

import torch

from onebert_encoder.base import Base
from onebert_encoder.dropout import Dropout
from onebert_encoder.kernels.native import load_native
from onebert_encoder.kernels.plain import PlainKernels
from onebert_encoder.kernels.protocol import Kernels


def choose_kernels(base: Base, dropout: Dropout) -> Kernels:
    """The fastest that can do it: only the plain ones have gradients, dropout and every activation."""
    if not torch.is_grad_enabled() and not dropout.attention and base.config.activation == "gelu":
        native = load_native(base.device.type, base.dtype)
        if native is not None:
            return native
    return PlainKernels(base.activation, dropout)
