"""Computes the logits of many inputs for one row or delta, without dropout, in batches of similar lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold, to_tensors
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Row, stack_rows
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import Manifest
from onebert_training.fit.features import Features, Inputs, token_batches
from onebert_training.tasks.metrics import check_finite
from onebert_training.tasks.objective import Logits


@dataclass(frozen=True)
class Model:
    """A base with a row folded on it, for answers without dropout; `tensors` is None if the base itself was changed."""

    base: Base
    row: Row
    tensors: Mapping[str, Tensor] | None


def predict(base: Base, row: Row, features: Features, inputs: Sequence[int] | None = None) -> list[Logits]:
    """Logits of the inputs with these indices, or of all: [labels] each, or [tokens, labels] for a per-token task."""
    tokens = features.tokens
    asked = range(len(tokens)) if inputs is None else inputs
    logits: dict[int, Tensor] = {}
    with torch.no_grad():
        rows = stack_rows(base, [row])
        for chosen in token_batches(sorted(asked, key=lambda i: len(tokens[i])), tokens):
            batch = pack(base, [tokens[i] for i in chosen], [0] * len(chosen), layers=features.layers)
            activations = joined(features.take(chosen))
            logits.update(zip(chosen, compute_logits(base, rows, batch, activations=activations), strict=True))
        return [logits[i].cpu().numpy() for i in asked]


def tokenize(base: Base, manifest: Manifest, texts: Sequence[Text]) -> list[Tokens]:
    """Tokens of texts as the delta's manifest reads them, aligned for per-token tasks."""
    tokenizer = base.tokenizer.reading(manifest.pooling)
    return tokenizer.encode(texts, manifest.max_length, align=manifest.per_token)


def predict_delta(base: Base, delta: Delta, tokens: Sequence[Tokens]) -> list[Logits]:
    """Logits of a delta that was checked against the base; raises NotFinite if one is NaN or infinite."""
    logits = predict(base, row_of(base, delta), Inputs(base, tokens).features(0, delta.manifest.pooling))
    check_finite(logits)
    return logits


@torch.no_grad()
def row_of(base: Base, delta: Delta) -> Row:
    """The folded row of a delta that was checked against the base."""
    return fold(base, to_tensors(delta, base), delta.manifest.pooling)


def joined(activations: Sequence[Tensor]) -> Tensor | None:
    """Activations of several examples end to end, [tokens, h]; None for examples that enter at the embeddings."""
    return torch.cat(list(activations)) if activations else None
