"""What a detector finds in a text: labels over a threshold, of the whole text or of its parts."""

from collections.abc import Sequence

from onebert_encoder.answering.positives import flagged
from onebert_encoder.answering.results import Labeled, Labeling, Prediction
from onebert_encoder.answering.scores import DEFAULT_THRESHOLD, own_activation
from onebert_server.answering.answers import Answered
from onebert_server.facades.reading import found, predicted
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput


def detections(answered: Answered, length: int, threshold: float | None = None) -> list[Labeled]:
    """What is over the threshold: positive labels alone, where the task says which are; of whole texts best first.

    Args:
        answered: by a task on whole texts, whose labels hold for all of the text, or by a token task.
        length: of the text, in code points.
        threshold: None is the task's own, else one half; a token task has none of its own, and finds every part.

    Raises:
        AnswerNotFinite: the answer is no number.
        InvalidInput: the task finds spans for questions; or a regression is asked for no threshold, and has none.
    """
    if isinstance(answered.read().answer, Labeling):
        return _of_parts(answered, threshold)
    prediction = predicted(answered)
    scores = dict(zip(prediction.names, prediction.scores.tolist(), strict=True))
    over = _over(prediction, answered.facts, scores, threshold)
    return [Labeled(0, length, label, scores[label]) for label in sorted(over, key=lambda label: -scores[label])]


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


def _over(prediction: Prediction, facts: Facts, scores: dict[str, float], threshold: float | None) -> Sequence[str]:
    positives = facts.decision.positives if facts.decision is not None else None
    if threshold is not None:
        return [label for label in positives or prediction.names if scores[label] > threshold]
    if positives is not None:
        return flagged(prediction, facts)
    if prediction.selected is not None:
        return prediction.selected
    if facts.task_type == "regression":
        raise InvalidInput(f"{facts.ref} is a regression task, and does not say over which value it detects something")
    return [label for label in prediction.names if scores[label] > DEFAULT_THRESHOLD[own_activation(facts)]]
