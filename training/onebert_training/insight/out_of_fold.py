"""What each row is answered by a head that was fitted on the other rows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.answering.scores import softmax
from onebert_training.data.examples import Split
from onebert_training.data.splitting import SPLIT_SEED, fold_of
from onebert_training.heads.exact import fit_heads
from onebert_training.target_scale import TargetScale
from onebert_training.tasks.objectives import SingleLabel

FOLDS = 5
_STRENGTHS = (3.0, 1.0, 0.3, 0.1)

Floats = NDArray[np.float64]


def out_of_fold(labels: Sequence[str], vectors: NDArray[np.float32], examples: Split) -> Floats:
    """[rows, labels] probabilities, of each row by an exact head that was fitted on rows with other texts.

    The strength is the one by which the labels of all rows are the most probable.

    Args:
        labels: names of the labels.
        vectors: [rows, h], what a head reads.
        examples: the rows, of a single_label task.
    """
    objective, gold = SingleLabel(labels), examples.gold
    fold = fold_of(examples, "single_label", FOLDS, SPLIT_SEED)
    found = np.zeros((len(_STRENGTHS), len(gold), len(labels)))
    for held in (fold == one for one in np.unique(fold)):
        heads = fit_heads(objective, vectors[~held], gold[~held], _STRENGTHS)
        for place, head in enumerate(heads):
            found[place, held] = softmax(head.logits(vectors[held], TargetScale()).astype(np.float64))
    likelihood = np.log(np.maximum(found[:, np.arange(len(gold)), gold], np.finfo(np.float64).tiny)).sum(axis=1)
    best: Floats = found[likelihood.argmax()]
    return best
