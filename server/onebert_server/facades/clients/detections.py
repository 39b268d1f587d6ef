"""What a detector finds in a text: labels over a threshold, of the whole text or of its parts."""

from collections.abc import Sequence

import numpy as np

from onebert_encoder.answering.asked import FINDINGS, Asked
from onebert_encoder.answering.results import Labeled, Labeling, Prediction
from onebert_encoder.answering.scores import DEFAULT_THRESHOLD, own_activation
from onebert_server.answering.answers import Answered
from onebert_server.facades.reading import found, predicted
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput

FOUND = Asked(wording=FINDINGS)
"""For answers of which nothing but what is found is said."""


def detections(
    answered: Answered, length: int, threshold: float | None = None, most: int | None = None
) -> list[Labeled]:
    """What is over the threshold: positive labels alone, where the task says which are; of whole texts best first.

    Args:
        answered: by a task on whole texts, whose labels hold for all of the text, or by a token task.
        length: of the text, in code points.
        threshold: None is the task's own, else one half; a token task has none of its own, and finds every part.
        most: labels of a whole text; None is all.

    Raises:
        AnswerNotFinite: the answer is no number.
        InvalidInput: the task finds spans for questions; or a regression is asked for no threshold, and has none.
    """
    if isinstance(answered.read().answer, Labeling):
        return _of_parts(answered, threshold)
    prediction = predicted(answered)
    names, scores = prediction.names, prediction.scores
    best = sorted(_over(prediction, answered.facts, threshold), key=lambda index: -scores[index])
    return [Labeled(0, length, names[index], float(scores[index])) for index in best[:most]]


def parts_of(labeling: Labeling) -> Sequence[Labeled]:
    """The entities of a text, or where its labels mark none its words, without those that are labeled `O`."""
    if labeling.entities is not None:
        return labeling.entities
    return [word for word in labeling.words if word.label != "O"]


def _of_parts(answered: Answered, threshold: float | None) -> list[Labeled]:
    labeling, decision = found(answered, Labeling, "labels texts"), answered.facts.decision
    parts = parts_of(labeling)
    if decision is not None and decision.positives is not None:
        # Entities have the kinds of their words' labels.
        bare = labeling.entities is not None
        positive = {label[2:] if bare else label for label in decision.positives}
        parts = [one for one in parts if one.label in positive]
    return [one for one in parts if threshold is None or one.score > threshold]


def _over(prediction: Prediction, facts: Facts, threshold: float | None) -> list[int]:
    """The indexes of labels that count; in time that grows with the labels, however many are positive."""
    names, positives = prediction.names, facts.decision.positives if facts.decision is not None else None
    if threshold is None and prediction.selected is not None:
        selected = set(prediction.selected)
        over = [index for index, name in enumerate(names) if name in selected]
    elif threshold is None and facts.task_type == "regression":
        raise InvalidInput(f"{facts.ref} is a regression task, and does not say over which value it detects something")
    else:
        least = DEFAULT_THRESHOLD[own_activation(facts)] if threshold is None else threshold
        over = np.flatnonzero(prediction.scores > least).tolist()
    if positives is None:
        return over
    wanted = set(positives)
    return [index for index in over if names[index] in wanted]
