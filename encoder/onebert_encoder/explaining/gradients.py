"""Gradient × input: the contribution of each token to an answer, to first order, through base and delta."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from onebert_encoder.answering.scores import Array, Outputs, own_activation, temperature_of
from onebert_encoder.base.base import Base
from onebert_encoder.compute.plain import Linear
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Row, stack_rows
from onebert_encoder.text.tokens import Tokens


def gradient_times_input(
    base: Base, row: Row, tokens: Sequence[Tokens], labels: Sequence[int], outputs: Outputs
) -> list[Array]:
    """The gradient of each answer at its tokens' normalized embeddings, times their difference from their mean.

    The gradient is taken after the LayerNorm of the embeddings: before it, gradient times vector is almost zero, since
    the LayerNorm removes every change of a vector's length to first order.

    The differentiated number is a label's evidence, from the logits divided by the task's temperature: with softmax the
    log odds of the label against all others, else its logit. Unlike a probability it does not saturate.

    `base` needs a dtype with gradients (not int8). Returns [tokens] float64 per input, special tokens included.
    """
    batch, embedded = pack(base, tokens, [0] * len(tokens)), _Embedded(base.embeddings.W_e)
    own = copy(base)
    own.embeddings = replace(base.embeddings, W_e=embedded)
    with torch.enable_grad():
        logits = compute_logits(own, stack_rows(own, [row]), batch)
        total = torch.stack([_evidence(*one, outputs) for one in zip(logits, labels, strict=True)]).sum()
        [gradient] = torch.autograd.grad(total, [embedded.x])
    both = zip(batch.of_inputs(embedded.x.detach().double()), batch.of_inputs(gradient.double()), strict=True)
    return [((x - x.mean(dim=0)) * own).sum(dim=1).cpu().numpy() for x, own in both]


class _Embedded:
    """Replaces the projection behind the embeddings, and keeps its input `x` to differentiate at."""

    def __init__(self, W_e: Linear | None) -> None:
        self._W_e = W_e

    def __call__(self, x: Tensor) -> Tensor:
        self.x = x.detach().requires_grad_()
        return self.x if self._W_e is None else self._W_e(self.x)


def _evidence(logits: Tensor, label: int, outputs: Outputs) -> Tensor:
    logits = logits / temperature_of(outputs.decision)
    if own_activation(outputs) != "softmax" or len(logits) == 1:
        return logits[label]
    others = torch.cat([logits[:label], logits[label + 1 :]])
    return logits[label] - torch.logsumexp(others, dim=0)
