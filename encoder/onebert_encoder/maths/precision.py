"""Finds the precision that a machine computes fast in, and checks its results."""

import logging

import torch

from onebert_encoder.base.base import Base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import golden_tokens
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.maths.sequences import Sequences

logger = logging.getLogger("onebert.precision")

# Largest error of the last layer's vectors, relative to their length. Rounding to bfloat16 gives 0.026 after MiniLM's
# six layers, int8 0.19; both grow with the root of the number of layers. A broken kernel gives about 1.
_MOST_ERROR = {torch.bfloat16: 0.1, torch.int8: 0.5}


def fast_dtype(device: str) -> torch.dtype:
    """bfloat16 if the hardware multiplies it, else float32."""
    if device != "cpu":
        with torch.cuda.device(device):
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    # The oldest supported PyTorch does not have `get_capabilities`.
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    multiplies = any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.bfloat16 if multiplies else torch.float32


def trusted(base: Base) -> Base:
    """The base; in float32 if this machine's results in its precision are too far from float32's."""
    if base.precision == torch.float32:
        return base
    exact = base.in_dtype(torch.float32)
    error = relative_error(base, exact)
    if error <= _MOST_ERROR[base.precision]:
        return base
    logger.warning("%s strays from float32 by %.2f on this machine, so float32 is used", base.dtype_name, error)
    return exact


def relative_error(base: Base, exact: Base) -> float:
    """The largest error of a token's last vector, relative to its length in `exact`, over the golden sequences."""
    got, want = _vectors(base), _vectors(exact)
    return float(((got - want).norm(dim=1) / want.norm(dim=1)).max())


def _vectors(base: Base) -> torch.Tensor:
    tokens = golden_tokens(base, base.config.max_length, pooling="mean")
    with torch.inference_mode():
        batch = pack(base, Sequences.of(tokens), [0] * len(tokens))
        x = encode(base, stack_rows(base, [fold(base, {})]), batch).float()
    return x[: sum(map(len, tokens))]
