"""The one file that decides which kernels compute a batch."""

import torch

from onebert_encoder.base.base import Base
from onebert_encoder.compute.kernels.gpu import load_gpu
from onebert_encoder.compute.kernels.native import load_native
from onebert_encoder.compute.kernels.plain import PlainKernels
from onebert_encoder.compute.kernels.protocol import Kernels
from onebert_encoder.layout.dropout import Dropout
from onebert_encoder.maths.gpu_heads import load_heads
from onebert_encoder.maths.heads import HeadKernels


def choose_kernels(base: Base, dropout: Dropout) -> Kernels:
    """The fastest kernels that can compute the pass: only the plain ones have gradients, dropout and any activation."""
    if torch.is_grad_enabled() or dropout.attention:
        return PlainKernels(base.activation, dropout)
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
        return load_gpu(base.device, base.dtype, base.config.hidden_size, base.config.num_heads)
    return load_native(base.device.type, base.dtype)
