"""Explains one row's answers to texts in this process, without a server: by occlusion, or by gradient × input."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.scores import Array, Outputs, cut_rule, own_activation, temperature_of
from onebert_encoder.base.base import Base
from onebert_encoder.compute.plain import Linear
from onebert_encoder.explaining import words
from onebert_encoder.explaining.words import Explanation, Stretch
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Row, stack_rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.errors import AnswerNotFinite, InvalidInput
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import Manifest

# Texts per batch.
_TEXTS = 32


class TextExplainer:
    """Explains answers about texts cut to `max_length`, on a base with gradients; InvalidInput for tokens."""

    def __init__(self, base: Base, row: Row, manifest: Manifest) -> None:
        if manifest.per_token:
            raise InvalidInput(f"this is a {manifest.task_type} task, whose answers are not explained by words")
        self._base, self._row, self._outputs = base, row, manifest
        self._tokenizer = base.tokenizer.reading(manifest.pooling)
        self._rows = stack_rows(base, [row])
        self._rule = cut_rule(manifest)

    @classmethod
    def for_delta(cls, base: Base, delta: Delta) -> "TextExplainer":
        return cls(base, fold_delta(base, delta), delta.manifest)

    def answers(self, texts: Sequence[Text]) -> list[Prediction]:
        """Answers texts; raises AnswerNotFinite if a logit is NaN or infinite."""
        tokens = self._tokenizer.encode(texts, self._outputs.max_length, rule=self._rule)
        predictions: list[Prediction] = []
        for start in range(0, len(tokens), _TEXTS):
            part = tokens[start : start + _TEXTS]
            with torch.inference_mode():
                batch = pack(self._base, Sequences.of(part), [0] * len(part))
                logits = compute_logits(self._base, self._rows, batch).split()
            if not all(each.isfinite().all() for each in logits):
                raise AnswerNotFinite("the answer to this text, or to it without a word, is not a finite number")
            answers = [answer(each.float().cpu().numpy(), self._outputs) for each in logits]
            predictions += [each for each in answers if isinstance(each, Prediction)]
        return predictions

    def read(self, text: Text) -> tuple[int, int]:
        """The number of tokens read of a text, and its full length in tokens, both with special tokens."""
        tokenizer, max_length = self._tokenizer, self._outputs.max_length
        [pieces] = tokenizer.split([text], max_length)
        full = tuple((0, length) for length in pieces.lengths)
        return tokenizer.measure(pieces, tokenizer.fit(pieces, max_length))[0], tokenizer.measure(pieces, full)[0]

    def words(self, text: Text) -> list[Stretch]:
        """The words among the `max_length` tokens that are read, which can be left out."""
        [tokens] = self._tokenizer.encode([text], self._outputs.max_length, align=True, rule=self._rule)
        return [] if tokens.alignment is None else words.removable(words.words_of(tokens.alignment))

    def by_occlusion(self, text: Text) -> Explanation:
        """Scores each word by the drop of the answer's score without it."""
        stretches = self.words(text)
        prediction, *without_word = self.answers([text, *(words.without(text, stretch) for stretch in stretches)])
        return words.explain_by_occlusion(prediction, stretches, [p.scores[prediction.best] for p in without_word])

    def by_gradient(self, text: Text) -> Explanation:
        """Scores each word to first order: gradient × input, summed over its tokens."""
        stretches, [prediction] = self.words(text), self.answers([text])
        tokens = self._tokenizer.encode([text], self._outputs.max_length, rule=self._rule)
        [by_token] = gradient_times_input(self._base, self._row, tokens, [prediction.best], self._outputs)
        effects = [float(np.sum(by_token[list(stretch.tokens)])) for stretch in stretches]
        return words.explanation("gradient_times_input", prediction.label, stretches, effects)


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
    batch = pack(base, Sequences.of(tokens), [0] * len(tokens))
    embedded = _Embedded(base.embeddings.W_e)
    traced = copy(base)
    traced.embeddings = replace(base.embeddings, W_e=embedded)
    with torch.enable_grad():
        logits = compute_logits(traced, stack_rows(traced, [row]), batch).split()
        total = torch.stack([_evidence(*pair, outputs) for pair in zip(logits, labels, strict=True)]).sum()
        [gradient] = torch.autograd.grad(total, [embedded.x])
    both = zip(batch.of_inputs(embedded.x.detach().double()), batch.of_inputs(gradient.double()), strict=True)
    return [((x - x.mean(dim=0)) * grad).sum(dim=1).cpu().numpy() for x, grad in both]


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
    rest = torch.cat([logits[:label], logits[label + 1 :]])
    return logits[label] - torch.logsumexp(rest, dim=0)
