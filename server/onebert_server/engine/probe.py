"""The probe: a head of random projections for the bare base, by which all texts are compared, whatever their task."""

import torch

from onebert_encoder.base.base import Base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import Head

# More hear a change later, fewer may miss it: see decision 73.
OUTPUTS = 64
_SEED = 20261127


def probe(base: Base) -> Head:
    """Returns a head whose logits [outputs] are projections of the mean over tokens; the same for every start.

    A small base has an output for every second of its units.
    """
    units = base.config.hidden_size
    outputs = min(OUTPUTS, units // 2)
    weight = torch.randn(outputs, units, generator=torch.Generator().manual_seed(_SEED)) / units**0.5
    head = fold(base, {"head.weight": weight.to(base.device), "head.bias": torch.zeros(outputs).to(base.device)}).head
    if head is None:
        raise ValueError("a row with a head's tensors has a head")
    return head
