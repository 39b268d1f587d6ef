"""What is seen of an answer from outside, in metrics of tasks and the access log: its labels and its top score."""

from onebert_encoder.answering.results import Answer, Extraction, Labeling, Prediction
from onebert_server.telemetry.observed import Seen

# In place of the labels of an answer that says that it does not know.
ABSTAINED = ("(abstained)",)


def seen(task: str, answer: Answer | None) -> Seen:
    """What is seen of an answer.

    Args:
        task: whose it is.
        answer: None where there was none, because it was no number.
    """
    match answer:
        case Prediction(ranks=True):
            labels = (answer.label,) if answer.selected is None else tuple(answer.selected)
            return Seen(task, ABSTAINED if answer.abstained else labels, _share(answer.score))
        case Labeling(entities=list(entities)):
            return Seen(task, tuple(entity.label for entity in entities))
        case Extraction(answers=spans):
            return Seen(task, ABSTAINED if answer.abstained else (), _share(spans[0].score) if spans else None)
    return Seen(task)


def _share(score: float) -> float | None:
    """A probability; whatever a task or a request wants in place of one, such as logits, is no part of a histogram."""
    return score if 0 <= score <= 1 else None
