"""What is seen of an answer from outside, in metrics of tasks and the access log: its labels and its top score."""

from collections.abc import Sequence

from onebert_encoder.answering.results import Answer, Extraction, Labeling, Prediction
from onebert_server.telemetry.observed import OTHER, Seen
from onebert_server.versions.facts import Facts

# In place of the labels of an answer that says that it does not know.
ABSTAINED = ("(abstained)",)


# Labels of one answer that are named; what it names beyond is one label more.
MOST = 64


def seen(facts: Facts, answer: Answer | None) -> Seen:
    """What is seen of an answer.

    Args:
        facts: of the version that gave it.
        answer: None where there was none, because it was no number.
    """
    labels: Sequence[str] = ()
    score = None
    match answer:
        case Prediction(ranks=True):
            score = answer.score
            labels = ABSTAINED if answer.abstained else [answer.label] if answer.selected is None else answer.selected
        case Labeling(entities=list(entities)):
            labels = [entity.label for entity in entities]
        case Extraction(answers=spans):
            score = spans[0].score if spans else None
            labels = ABSTAINED if answer.abstained else ()
    named = (*labels[:MOST], OTHER) if len(labels) > MOST else tuple(labels)
    return Seen(facts.task, named, None if score is None else _share(score), facts.version)


def _share(score: float) -> float | None:
    """A probability; whatever a task or a request wants in place of one, such as logits, is no part of a histogram."""
    return score if 0 <= score <= 1 else None
