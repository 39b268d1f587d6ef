"""Reads answers for façades: checks the kind of an answer, and ranks scores."""

from typing import Any, TypeVar

from onebert_encoder.answering.results import Answer, Prediction
from onebert_server.answering.answers import Answered
from onebert_store.errors import InvalidInput

T = TypeVar("T", bound=Answer)


def found(answered: Answered, kind: type[T], does: str) -> T:
    """Returns the answer if it is of this kind, else raises InvalidInput; `does` describes the required task."""
    answer = answered.read().answer
    if isinstance(answer, kind):
        return answer
    raise InvalidInput(f"{answered.facts.ref} is a {answered.facts.task_type} task; this is for one that {does}")


def predicted(answered: Answered) -> Prediction:
    """The answer of a task on whole texts; raises like `found`."""
    return found(answered, Prediction, "labels whole texts")


def ranked(prediction: Prediction, top_k: int | None = None) -> list[dict[str, Any]]:
    """The best `top_k` labels with their scores, or all; a regression keeps its own order."""
    return [{"label": label, "score": score} for label, score in prediction.top(top_k).items()]
