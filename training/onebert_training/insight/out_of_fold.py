"""What each row is answered by a head that was fitted on the other rows."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.answering.scores import softmax
from onebert_encoder.text.tokens import Text
from onebert_training.heads.exact import fit_heads
from onebert_training.target_scale import TargetScale
from onebert_training.tasks.objectives import SingleLabel

FOLDS = 5
_STRENGTHS = (3.0, 1.0, 0.3, 0.1)

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def out_of_fold(labels: Sequence[str], vectors: NDArray[np.float32], gold: Indices, texts: Sequence[Text]) -> Floats:
    """[rows, labels] probabilities, of each row by an exact head that was fitted on rows with other texts.

    The strength is the one by which the labels of all rows are the most probable.

    Args:
        labels: names of the labels.
        vectors: [rows, h], what a head reads.
        gold: [rows], the labels that the rows have.
        texts: of the rows; equal ones are never on both sides.
    """
    objective = SingleLabel(labels)
    found = np.zeros((len(_STRENGTHS), len(gold), len(labels)))
    for fitted, held in _folds(texts):
        heads = fit_heads(objective, vectors[fitted], gold[fitted], _STRENGTHS)
        for place, head in enumerate(heads):
            found[place, held] = softmax(head.logits(vectors[held], TargetScale()).astype(np.float64))
    likelihood = np.log(np.maximum(found[:, np.arange(len(gold)), gold], np.finfo(np.float64).tiny)).sum(axis=1)
    best: Floats = found[likelihood.argmax()]
    return best


def _folds(texts: Sequence[Text]) -> Iterator[tuple[Indices, Indices]]:
    """Rows to fit on and rows to answer, for each fold; equal for equal texts."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    fold_of_text = np.random.default_rng(0).permutation(len(places)) % FOLDS
    fold = fold_of_text[[places[text] for text in texts]]
    for number in range(min(FOLDS, len(places))):
        yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)
