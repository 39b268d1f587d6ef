"""Ranks texts by their answers, the most informative to label first: pure functions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from onebert_encoder.answering.results import Labeling, Prediction, answer_of
from onebert_encoder.answering.scores import thresholds_of
from onebert_server.contract.review import Order
from onebert_server.versions.facts import Facts
from onebert_store.comparison import ShortAnswer


class ScoredText(NamedTuple):
    """One version's answer to a text."""

    facts: Facts
    prediction: Prediction | Labeling

    @property
    def answer(self) -> ShortAnswer:
        """The part that versions agree or disagree in."""
        return answer_of(self.facts.task_type, self.prediction)


def ranked(by: Order, texts: Sequence[Sequence[ScoredText]]) -> list[int]:
    """Returns the indexes of texts by their answers, each text's by the same versions."""
    keys = [_KEYS[by](answers) for answers in texts]
    return sorted(range(len(texts)), key=keys.__getitem__)


def _margin(answers: Sequence[ScoredText]) -> tuple[float, ...]:
    """Subtracts a version's two best scores (Scheffer et al. 2001), or a multi_label score from its threshold.

    Returns the score of the least certain word of a token task.
    """
    facts, prediction = answers[0]
    if isinstance(prediction, Labeling):
        return (min((word.score for word in prediction.words), default=1.0),)
    if facts.task_type == "single_label" and len(prediction.scores) > 1:
        second, best = np.partition(prediction.scores, -2)[-2:]
        return (float(best - second),)
    thresholds = thresholds_of(facts)
    return (0.0 if thresholds is None else float(np.abs(prediction.scores - thresholds).min()),)


def _agreement(answers: Sequence[ScoredText]) -> tuple[float, ...]:
    """Counts the versions with the most frequent answer (variation ratio, Freeman 1965); the margin breaks ties."""
    [(_, count)] = Counter(scored.answer for scored in answers).most_common(1)
    return (count, *_margin(answers))


_KEYS: Mapping[Order, Callable[[Sequence[ScoredText]], tuple[float, ...]]] = {
    "margin": _margin,
    "disagreement": _agreement,
}
