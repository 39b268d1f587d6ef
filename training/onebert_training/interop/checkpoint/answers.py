"""Computes the checkpoint's own answers with transformers."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers.modeling_outputs import SequenceClassifierOutput

from onebert_encoder.answering.scores import Array
from onebert_encoder.text.tokens import Tokens
from onebert_store.errors import NotFinite
from onebert_training.interop.heads import Layer

_BATCH_TOKENS = 4096


class WithHead(torch.nn.Module):
    """A plain encoder with a head's layers, called like a sequence classifier of transformers."""

    def __init__(self, encoder: Any, pooling: str, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.encoder, self.config, self.pooling, self.layers = encoder, encoder.config, pooling, layers

    def forward(self, **inputs: Tensor) -> SequenceClassifierOutput:
        """The logits of texts of equal length, without padding."""
        hidden = self.encoder(**inputs).last_hidden_state
        vectors = hidden.mean(dim=1) if self.pooling == "mean" else hidden[:, 0]
        for layer in self.layers:
            vectors = linear(vectors, layer.weight, layer.bias)
            vectors = vectors.tanh() if layer.tanh else vectors
        return SequenceClassifierOutput(logits=vectors)


@torch.inference_mode()
def answer_all(model: Any, tokens: Sequence[Tokens]) -> list[Array]:
    """The logits of a Hugging Face model: [labels] for each text, or [tokens, labels] in a per-token task.

    Batches hold texts of one length, so that nothing is padded. Raises NotFinite for NaN or infinity.
    """
    found: dict[int, Array] = {}
    for length, group in groupby(
        sorted(range(len(tokens)), key=lambda i: len(tokens[i])), key=lambda i: len(tokens[i])
    ):
        same, size = list(group), max(1, _BATCH_TOKENS // length)
        for chosen in (same[start : start + size] for start in range(0, len(same), size)):
            found.update(zip(chosen, _logits(model, [tokens[i] for i in chosen]), strict=True))
    if not all(np.isfinite(one).all() for one in found.values()):
        raise NotFinite("an answer of the checkpoint is not a finite number")
    return [found[i] for i in range(len(tokens))]


def _logits(model: Any, texts: Sequence[Tokens]) -> Array:
    ids = torch.tensor([text.input_ids for text in texts])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.tensor([text.type_ids for text in texts])
    out = model(**inputs)
    logits = out.logits if "logits" in out else torch.stack([out.start_logits, out.end_logits], -1)
    return logits.float().numpy()
