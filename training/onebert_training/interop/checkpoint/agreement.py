"""How far two models agree on the same texts, by the answers that a server would read from their logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Answer, Extraction, Labeling, Prediction
from onebert_encoder.answering.scores import ACTIVATE, Array, own_activation, softmax
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.file.manifest import Manifest


@dataclass(frozen=True)
class Answered:
    """A model's logits for texts, and the tokens that it read, which need not be those of another model."""

    tokens: Sequence[Tokens]
    logits: Sequence[Array]


@dataclass(frozen=True)
class Agreement:
    """How far answers are those of a checkpoint.

    Attributes:
        share: of the texts (of a token task: the words) with the same answer; of a regression the concordance
            correlation (Lin 1989), which is 1 only where the numbers are the same; of several numbers the lowest.
        largest: largest difference of two probabilities; of a regression, of two numbers.
        mean: mean absolute difference, the same.
    """

    share: float
    largest: float
    mean: float

    def reaches(self, share: float, difference: float | None) -> bool:
        """Whether the share is `share` or more and no difference is above `difference`, if that is given."""
        return self.share >= share and (difference is None or self.largest <= difference)


def compare(manifest: Manifest, texts: Sequence[Text], theirs: Answered, ours: Answered) -> Agreement:
    """How far two models agree; `theirs` are the answers of the checkpoint."""
    scores = zip(*(_scores(manifest, one) for one in (theirs, ours)), strict=True)
    # Where the two read other tokens, a per-token task has other numbers, and its answers are compared all the same.
    apart = [np.abs(a - b).ravel() for a, b in scores if a.shape == b.shape]
    differences = np.concatenate(apart) if apart else np.zeros(1)
    if manifest.task_type == "regression":
        outputs = zip(np.stack(theirs.logits).T, np.stack(ours.logits).T, strict=True)
        share = min(concordance(*pair) for pair in outputs)
    else:
        answers = (_answers(manifest, texts, one) for one in (theirs, ours))
        same = np.concatenate([_same(*pair) for pair in zip(*answers, strict=True)])
        share = float(same.mean()) if len(same) else 1.0
    return Agreement(share, float(differences.max()), float(differences.mean()))


def concordance(a: Array, b: Array) -> float:
    """Lin's concordance correlation of numbers; of equal constant ones 1."""
    # Squares of what float32 holds are more than it holds.
    a, b = a.astype(np.float64), b.astype(np.float64)
    spread = a.var() + b.var() + (a.mean() - b.mean()) ** 2
    return float(2 * ((a - a.mean()) * (b - b.mean())).mean() / spread) if spread else 1.0


def _scores(manifest: Manifest, of: Answered) -> list[Array]:
    if manifest.task_type == "span":
        return [softmax(logits.T) for logits in of.logits]
    return [ACTIVATE[own_activation(manifest)](logits) for logits in of.logits]


def _answers(manifest: Manifest, texts: Sequence[Text], of: Answered) -> list[Answer]:
    return [
        answer(logits, manifest, text, tokens.alignment)
        for logits, text, tokens in zip(of.logits, texts, of.tokens, strict=True)
    ]


def _same(theirs: Answer, ours: Answer) -> Array:
    """Whether two answers are the same: of a labeling, for each word of theirs."""
    match theirs, ours:
        case Prediction(), Prediction():
            same = (
                theirs.best == ours.best
                if theirs.selected is None
                else set(theirs.selected) == set(ours.selected or ())
            )
            return np.array([same])
        case Labeling(), Labeling():
            labels = {(word.start, word.end): word.label for word in ours.words}
            return np.array([labels.get((word.start, word.end)) == word.label for word in theirs.words], dtype=bool)
        case Extraction(), Extraction():
            places = [[(span.start, span.end) for span in side.answers] for side in (theirs, ours)]
            return np.array([places[0] == places[1]])
    raise TypeError("answers of two task types")
