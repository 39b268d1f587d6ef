"""The input of a training step: tokens, or kept activations for the lowest trained layer; logits of many inputs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.answering.scores import cut_rule
from onebert_encoder.base.base import Base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.fold import fold, fold_delta
from onebert_encoder.maths.heads import pool
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Row, stack_rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import SIAMESE, Manifest
from onebert_training.tasks.metrics import check_finite
from onebert_training.tasks.objective import Logits

BATCH_TOKENS = 4096  # more is not faster on a CPU
MAX_KEPT_BYTES = 1 << 30
_BLOCK_TOKENS = 1024  # larger is hardly faster, and wastes more if a run ends before it has seen all examples


class Inputs:
    """The examples of one split, shared by every run on them."""

    def __init__(self, base: Base, tokens: Sequence[Tokens]) -> None:
        self.base, self.tokens = base, tokens
        self._features: dict[tuple[int, str], Features] = {}

    def features(self, low: int, pooling: str) -> "Features":
        """The features that enter layer `low`; runs with the same layer and pooling share one object."""
        key = (low, pooling if low == self.base.config.num_layers else "")
        if key not in self._features:
            self._features[key] = Features(self.base, self.tokens, *key)
        return self._features[key]


class Features:
    """Activations that enter one layer, computed on first use and then kept, up to `MAX_KEPT_BYTES`.

    Kept activations are computed in fixed blocks of examples: rounding depends on the block, and an interrupted run,
    which reads in another order, must get the same bits.

    Attributes:
        tokens: the inputs that enter layer `low`; above the last layer each sequence is pooled into one token.
        low: the entered layer; 0 means the embeddings, which need no activations.
        seconds: time spent on kept activations, once per example.
    """

    def __init__(self, base: Base, tokens: Sequence[Tokens], low: int, pooling: str) -> None:
        self._base, self._texts, self.low = base, tokens, low
        self._pooling = pooling if pooling not in ("", "none") else None
        self.tokens = [_pooled(text) for text in tokens] if self._pooling else tokens
        self._ends = np.cumsum([len(text) for text in self.tokens])
        self._bare = stack_rows(base, [fold(base, {})]) if low else None
        size = int(self._ends[-1]) * base.config.hidden_size * (4 if self._pooling else base.dtype.itemsize)
        self._kept: Tensor | None = None
        if low and size <= MAX_KEPT_BYTES:
            dtype = torch.float32 if self._pooling else base.dtype
            self._kept = torch.empty(int(self._ends[-1]), base.config.hidden_size, dtype=dtype, device=base.device)
        by_length = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        blocks = token_batches(by_length, tokens, _BLOCK_TOKENS) if self._kept is not None else []
        self._block_of = {i: block for block in blocks for i in block}
        self._has = np.zeros(len(tokens), dtype=bool)
        self.seconds = 0.0

    @property
    def layers(self) -> range:
        return range(self.low, self._base.config.num_layers)

    def take(self, chosen: Sequence[int]) -> list[Tensor]:
        """Activations [tokens, h] of each chosen example; an empty list if `low` is 0."""
        if not self.low:
            return []
        if self._kept is None:
            return [activations for batch in token_batches(chosen, self._texts) for activations in self._compute(batch)]
        for i in chosen:
            if not self._has[i]:
                self._keep(self._kept, self._block_of[i])
        return [self._kept[self._span(i)] for i in chosen]

    def _keep(self, buffer: Tensor, block: Sequence[int]) -> None:
        started = time.perf_counter()
        for i, activations in zip(block, self._compute(block), strict=True):
            buffer[self._span(i)] = activations
            self._has[i] = True
        self.seconds += time.perf_counter() - started

    def _span(self, i: int) -> slice:
        return slice(int(self._ends[i]) - len(self.tokens[i]), int(self._ends[i]))

    @torch.no_grad()
    def _compute(self, chosen: Sequence[int]) -> list[Tensor]:
        if self._bare is None:
            raise ValueError("the embeddings have no activations")
        texts = [self._texts[i] for i in chosen]
        batch = pack(self._base, Sequences.of(texts), [0] * len(texts), layers=range(self.low))
        x = encode(self._base, self._bare, batch)
        if self._pooling:
            mean = np.full(len(batch.lengths), self._pooling in ("mean", SIAMESE))
            pooled = pool(batch.first, batch.lengths, x, mean)
            return list(torch.split(pooled, [1 + bool(text.second) for text in texts]))
        return batch.of_inputs(x)


def _pooled(text: Tokens) -> Tokens:
    count = 1 + bool(text.second)
    return Tokens([0] * count, [0] * count, second=count - 1)


def token_batches(order: Sequence[int], tokens: Sequence[Tokens], max_tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Cuts the order into batches of at most `max_tokens` tokens; a longer input is a batch of its own."""
    batches: list[list[int]] = []
    total = 0
    for i in order:
        if not batches or total + len(tokens[i]) > max_tokens:
            batches.append([])
            total = 0
        batches[-1].append(i)
        total += len(tokens[i])
    return batches


@dataclass(frozen=True)
class Model:
    """A base with a row folded on it, for answers without dropout; `tensors` is None if the base itself was changed."""

    base: Base
    row: Row
    tensors: Mapping[str, Tensor] | None


def predict(base: Base, row: Row, features: Features, inputs: Sequence[int] | None = None) -> list[Logits]:
    """Logits of the inputs with these indices, or of all: [labels] each, or [tokens, labels] for a per-token task."""
    tokens = features.tokens
    indices = range(len(tokens)) if inputs is None else inputs
    logits: dict[int, Tensor] = {}
    with torch.no_grad():
        rows = stack_rows(base, [row])
        for chosen in token_batches(sorted(indices, key=lambda i: len(tokens[i])), tokens):
            batch = pack(base, Sequences.of([tokens[i] for i in chosen]), [0] * len(chosen), layers=features.layers)
            activations = joined(features.take(chosen))
            computed = compute_logits(base, rows, batch, activations=activations)
            logits.update(zip(chosen, computed.split(), strict=True))
        return [logits[i].cpu().numpy() for i in indices]


def tokenize(base: Base, manifest: Manifest, texts: Sequence[Text]) -> list[Tokens]:
    """Tokens of texts as the delta's manifest reads them, aligned for per-token tasks."""
    tokenizer = base.tokenizer.reading(manifest.pooling)
    return tokenizer.encode(texts, manifest.max_length, manifest.per_token, cut_rule(manifest))


def predict_delta(base: Base, delta: Delta, tokens: Sequence[Tokens]) -> list[Logits]:
    """Logits of a delta that was checked against the base; raises NotFinite if one is NaN or infinite."""
    logits = predict(base, fold_delta(base, delta), Inputs(base, tokens).features(0, delta.manifest.pooling))
    check_finite(logits)
    return logits


def joined(activations: Sequence[Tensor]) -> Tensor | None:
    """Activations of several examples end to end, [tokens, h]; None for examples that enter at the embeddings."""
    return torch.cat(list(activations)) if activations else None
