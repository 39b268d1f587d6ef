"""Batches of tokens, and their logits input by input."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.maths.batch import Batch, pack
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Head, Heads, Rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens


def packed(base: Base, tokens: Sequence[Tokens], rows: Sequence[int], *more: Any, **named: Any) -> Batch:
    return pack(base, Sequences.of(tokens), rows, *more, **named)


def logits_of(base: Base, rows: Rows, batch: Batch, *more: Any, **named: Any) -> list[Tensor]:
    return compute_logits(base, rows, batch, *more, **named).split()


def heads_of(each: Sequence[Head]) -> Heads:
    """The heads of a batch whose sequences have these; an object that occurs several times is one head."""
    different = list({id(head): head for head in each}.values())
    rows = np.array([[id(head) for head in different].index(id(head)) for head in each])
    return Heads(different, rows, np.array([head.numbers for head in each]))
