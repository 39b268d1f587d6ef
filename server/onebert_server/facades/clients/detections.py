"""Detections in a text: labels over a threshold, of the whole text or of its parts."""

from collections.abc import Callable, Sequence

from onebert_encoder.answering.asked import FINDINGS, Asked
from onebert_encoder.answering.results import Labeled, Labeling, Prediction
from onebert_encoder.answering.scores import DEFAULT_THRESHOLD, own_activation
from onebert_server.answering.reading import Answered
from onebert_server.facades.facade import answer_as, predicted
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput

FOUND = Asked(wording=FINDINGS)
"""For replies that contain only the detections."""


def detections(
    answered: Answered, length: int, threshold: float | None = None, limit: int | None = None
) -> list[Labeled]:
    """The labels over the threshold, only positive ones if the task defines them; for whole texts best first.

    Args:
        length: of the text, in code points; labels of whole texts cover all of it.
        threshold: None means the task's own, else 0.5; a token task has none and returns every part.
        limit: maximum number of labels of a whole text.
    """
    if isinstance(answered.read().answer, Labeling):
        return _of_parts(answered, threshold)
    prediction = predicted(answered)
    names, scores = prediction.names, prediction.scores
    best = sorted(_over(prediction, answered.facts, threshold), key=lambda index: -scores[index])
    return [Labeled(0, length, names[index], scores[index]) for index in best[:limit]]


def parts_of(labeling: Labeling) -> Sequence[Labeled]:
    """The entities of a text; for labels without entities its words, except those labeled `O`."""
    if labeling.entities is not None:
        return labeling.entities
    return [word for word in labeling.words if word.label != "O"]


def replaced(text: str, spans: Sequence[Labeled], by: Callable[[Labeled], str]) -> str:
    """The text with other words for each span; of overlapping spans the first one's count."""
    parts, done = [], 0
    for span in sorted(spans, key=lambda at: (at.start, -at.end)):
        if span.start >= done:
            parts += [text[done : span.start], by(span)]
        done = max(done, span.end)
    return "".join([*parts, text[done:]])


def _of_parts(answered: Answered, threshold: float | None) -> list[Labeled]:
    labeling, decision = answer_as(answered, Labeling, "labels texts"), answered.facts.decision
    parts = parts_of(labeling)
    if decision is not None and decision.positives is not None:
        # Entities have label names without their BIO prefix.
        bare = labeling.entities is not None
        positive = {label[2:] if bare else label for label in decision.positives}
        parts = [part for part in parts if part.label in positive]
    return [part for part in parts if threshold is None or part.score > threshold]


def _over(prediction: Prediction, facts: Facts, threshold: float | None) -> list[int]:
    """The indexes of labels over their thresholds, in time linear in the number of labels."""
    names, positives = prediction.names, facts.decision.positives if facts.decision is not None else None
    if threshold is None and prediction.labels is not None:
        selected = set(prediction.labels)
        over = [index for index, name in enumerate(names) if name in selected]
    elif threshold is None and facts.task_type == "regression":
        raise InvalidInput(f"{facts.ref} is a regression task, and does not say over which value it detects something")
    else:
        least = DEFAULT_THRESHOLD[own_activation(facts)] if threshold is None else threshold
        over = [index for index, score in enumerate(prediction.scores) if score > least]
    if positives is None:
        return over
    wanted = set(positives)
    return [index for index in over if names[index] in wanted]
