"""Ranks texts by their answers or vectors, the most informative to label first: pure functions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.scores import thresholds_of
from onebert_server.versions.facts import Facts

Array: TypeAlias = NDArray[np.float64]


class By(StrEnum):
    """An order of texts.

    Attributes:
        MARGIN: the first version's two best scores are close; in a multi_label task a score is close to its threshold.
            Scheffer et al. 2001, "Active Hidden Markov Models for Information Extraction".
        DISAGREEMENT: few versions give the most frequent answer; of equal texts the one with the smaller margin.
            The variation ratio, Freeman 1965.
        SPREAD: the probability of the committee's label has a large standard deviation over its versions.
        NOVELTY: see `farthest_first`.
    """

    MARGIN = "margin"
    DISAGREEMENT = "disagreement"
    SPREAD = "spread"
    NOVELTY = "novelty"


class Scored(NamedTuple):
    """One version's answer to a text."""

    facts: Facts
    found: Prediction

    @property
    def answer(self) -> str | tuple[str, ...] | None:
        """The part that versions agree or disagree in; None if the version abstains."""
        if self.found.abstained:
            return None
        return self.found.label if self.facts.task_type == "single_label" else tuple(sorted(self.found.selected or ()))


def ranked(by: By, texts: Sequence[Sequence[Scored]]) -> list[int]:
    """Returns the indexes of texts by their answers, each text's by the same versions."""
    keys = [_KEYS[by](answers) for answers in texts]
    return sorted(range(len(texts)), key=keys.__getitem__)


def farthest_first(vectors: Array, known: Array, most: int) -> list[int]:
    """Returns the indexes of up to `most` texts, each the farthest from known texts and from those chosen before it.

    The greedy k-center of Sener and Savarese 2018, "Active Learning for Convolutional Neural Networks", algorithm 1;
    the first text, if none is known, is the farthest from the mean.

    Args:
        vectors, known: [texts, outputs], of the texts to choose from, and of texts whose label is known.
    """
    if not len(vectors):
        return []
    centers = known if len(known) else vectors.mean(axis=0, keepdims=True)
    nearest = np.min([((vectors - center) ** 2).sum(axis=1) for center in centers], axis=0)
    chosen = list[int]()
    while len(chosen) < min(most, len(vectors)):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((vectors - vectors[chosen[-1]]) ** 2).sum(axis=1))
        nearest[chosen] = -1.0
    return chosen


def _margin(answers: Sequence[Scored]) -> tuple[float, ...]:
    facts, found = answers[0]
    if facts.task_type == "single_label" and len(found.scores) > 1:
        second, best = np.partition(found.scores, -2)[-2:]
        return (float(best - second),)
    thresholds = thresholds_of(facts)
    return (0.0 if thresholds is None else float(np.abs(found.scores - thresholds).min()),)


def _agreement(answers: Sequence[Scored]) -> tuple[float, ...]:
    [(_, most)] = Counter(one.answer for one in answers).most_common(1)
    return (most, *_margin(answers))


def _closeness(answers: Sequence[Scored]) -> tuple[float, ...]:
    scores = np.stack([one.found.scores for one in answers])
    return (-float(scores[:, scores.mean(axis=0).argmax()].std()),)


_KEYS: Mapping[By, Callable[[Sequence[Scored]], tuple[float, ...]]] = {
    By.MARGIN: _margin,
    By.DISAGREEMENT: _agreement,
    By.SPREAD: _closeness,
}
