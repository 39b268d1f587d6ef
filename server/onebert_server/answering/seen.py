"""The parts of an answer that task metrics and the access log show: its labels and its top score."""

from collections.abc import Sequence

from onebert_encoder.answering.results import Answer, Extraction, Labeling, Prediction
from onebert_server.observed import OTHER, Seen
from onebert_server.versions.facts import Facts

# Replaces the labels of an answer that abstains.
ABSTAINED = ("(abstained)",)


# Named labels of one answer; all further ones count as one more label.
MOST = 64


def seen(facts: Facts, answer: Answer | None) -> Seen:
    """Returns the parts that are shown; `answer` is None if its numbers were not finite."""
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
    """Returns a probability; other scores that a task or a request wants, such as logits, fit no histogram."""
    return score if 0 <= score <= 1 else None
