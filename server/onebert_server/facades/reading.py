"""What façades take from answers: those of the kind that a route is for, ranked scores."""

from typing import Any, TypeVar

from onebert_encoder.answering.results import Answer, Prediction
from onebert_server.answering.answers import Answered
from onebert_store.errors import InvalidInput

T = TypeVar("T", bound=Answer)


def found(answered: Answered, kind: type[T], does: str) -> T:
    """The answer, where the task is of the kind that a route is for.

    Args:
        answered: by a task.
        kind: of answers.
        does: what such a task does, as errors say it.

    Raises:
        AnswerNotFinite: the answer is no number.
        InvalidInput: the task is of another kind.
    """
    answer = answered.read().answer
    if isinstance(answer, kind):
        return answer
    raise InvalidInput(f"{answered.facts.ref} is a {answered.facts.task_type} task; this is for one that {does}")


def predicted(answered: Answered) -> Prediction:
    """The answer of a task on whole texts; raises as `found`."""
    return found(answered, Prediction, "labels whole texts")


def ranked(prediction: Prediction, top_k: int | None = None) -> list[dict[str, Any]]:
    """Labels with their scores, best first: so many, or all; a regression keeps its own order."""
    return [{"label": label, "score": score} for label, score in prediction.top(top_k).items()]
