"""Gradient × input: to first order, what each token adds to the answer that a row gives, down through the delta."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.answering.scores import Array
from onebert_encoder.base.base import Base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Row, stack_rows
from onebert_encoder.text.tokens import Tokens
from onebert_store.file.manifest import TaskType


def gradient_times_input(
    base: Base, row: Row, tokens: Sequence[Tokens], labels: Sequence[int], task_type: TaskType
) -> list[Array]:
    """The gradient of each answer at the word embeddings of its tokens, times these embeddings.

    What is differentiated is the evidence of a label in logits: of a single-label task the logarithm of its odds
    against all others, else its logit. Unlike a probability it does not flatten where the answer is sure.

    Args:
        base: computes in a dtype that has gradients, which int8 has not.
        row: of a task on whole texts.
        tokens: the inputs, computed as one batch.
        labels: of each input the index of the label that is explained.
        task_type: of the task.

    Returns:
        For each input [tokens] float64, special tokens included.
    """
    batch = pack(base, tokens, [0] * len(tokens))
    # The table of this batch alone: a gradient at the base's would be of its size.
    words = base.embeddings.word[batch.word].detach().requires_grad_()
    own = copy(base)
    own.embeddings = replace(base.embeddings, word=words)
    places = torch.arange(len(words), device=base.device)
    with torch.enable_grad():
        logits = compute_logits(own, stack_rows(own, [row]), replace(batch, word=places))
        total = torch.stack([_evidence(*one, task_type) for one in zip(logits, labels, strict=True)]).sum()
        [gradient] = torch.autograd.grad(total, [words])
    # On a CPU the gradient of a table is sparse.
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    by_token = (dense.double() * words.detach().double()).sum(dim=1).cpu().numpy()
    first = batch.first.tolist()
    return [np.asarray(by_token[start : start + len(one)]) for start, one in zip(first, tokens, strict=True)]


def _evidence(logits: Tensor, label: int, task_type: TaskType) -> Tensor:
    if task_type != "single_label" or len(logits) == 1:
        return logits[label]
    others = torch.cat([logits[:label], logits[label + 1 :]])
    return logits[label] - torch.logsumexp(others, dim=0)
