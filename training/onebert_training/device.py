"""Loads a base on the device that the user named, else on a GPU if there is one."""

import torch

from onebert_encoder.base.base import Base, load_base
from onebert_store.errors import InvalidSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_on(base: str | Base | None, dtype: str, device: str | None) -> Base:
    """Loads a base on `device` (default: a GPU if any); raises InvalidSettings, BaseNotFound, UnsupportedBase."""
    if isinstance(base, Base):
        return base
    if dtype not in DTYPES:
        raise InvalidSettings("dtype is float32 or bfloat16")
    cuda = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    device = device or ("cuda" if cuda else "cpu")
    if device not in ("cpu", *(["cuda", *cuda] if cuda else [])):
        raise InvalidSettings("device is cpu, cuda or cuda:N, and one that this machine has")
    return load_base(base, dtype=DTYPES[dtype], device=device)
