"""Logits of many inputs for one row, without dropout: by length, in batches of a token budget."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onebert_encoder.base import Base
from onebert_encoder.batch import pack
from onebert_encoder.fold import Row, stack_rows
from onebert_encoder.predict import compute_logits
from onebert_encoder.tokens import Tokens

BATCH_TOKENS = 4096  # more is not faster on a CPU


def predict(base: Base, row: Row, tokens: Sequence[Tokens]) -> NDArray[np.float32]:
    """Logits of many inputs for one row, without dropout: [inputs, labels], in the inputs' order."""
    order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
    logits: dict[int, Tensor] = {}
    with torch.inference_mode():
        rows = stack_rows(base, [row])
        for chosen in token_batches(order, tokens):
            batch = pack(base, [tokens[i] for i in chosen], [0] * len(chosen))
            logits.update(zip(chosen, compute_logits(base, rows, batch), strict=True))
        return torch.stack([logits[i] for i in range(len(tokens))]).cpu().numpy()


def token_batches(order: Sequence[int], tokens: Sequence[Tokens]) -> Iterator[list[int]]:
    """Cuts the order into batches of at most `BATCH_TOKENS`, or of one input."""
    batch: list[int] = []
    total = 0
    for i in order:
        if batch and total + len(tokens[i]) > BATCH_TOKENS:
            yield batch
            batch, total = [], 0
        batch.append(i)
        total += len(tokens[i])
    if batch:
        yield batch


def in_float32(base: Base) -> Base:
    """The same base computing in float32, whatever it trained in."""
    if base.dtype == torch.float32:
        return base
    return Base(base.spec, base.config, base.anatomy, base.params, base.tokenizer, torch.float32, base.device)
