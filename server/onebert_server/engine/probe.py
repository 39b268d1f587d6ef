"""The probe: a head of random projections for the bare base, by which all texts are compared, whatever their task."""

import torch

from onebert_encoder.base.base import Base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import Head

# More hear a change later, fewer may miss it: see decision 73.
OUTPUTS = 64
SEED = 20261127


def outputs_of(base: Base) -> int:
    """The number of a probe's logits; a small base has one for every second of its units."""
    return min(OUTPUTS, base.config.hidden_size // 2)


def probe(base: Base) -> Head:
    """Returns a head whose logits [outputs] are projections of the mean over tokens; the same for every start."""
    units, outputs = base.config.hidden_size, outputs_of(base)
    weight = torch.randn(outputs, units, generator=torch.Generator().manual_seed(SEED)) / units**0.5
    head = fold(base, {"head.weight": weight.to(base.device), "head.bias": torch.zeros(outputs).to(base.device)}).head
    if head is None:
        raise ValueError("a row with a head's tensors has a head")
    return head
