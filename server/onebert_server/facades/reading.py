"""What façades take from answers: ranked scores, stretches of a text with their words."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from onebert_encoder.answering.results import Answer, Labeled, Prediction
from onebert_server.answering.answers import Answered
from onebert_store.errors import InvalidInput

T = TypeVar("T", bound=Answer)


class Scored(NamedTuple):
    """A label and its score."""

    label: str
    score: float


class Stretch(NamedTuple):
    """A part of a text: `word` is `text[start:end]`, in code points."""

    label: str
    score: float
    word: str
    start: int
    end: int


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


def ranked(prediction: Prediction, top_k: int | None = None) -> list[Scored]:
    """Labels with their scores, best first: so many, or all; a regression keeps its own order."""
    return [Scored(*one) for one in prediction.top(top_k).items()]


def stretches(text: str, parts: Sequence[Labeled]) -> list[Stretch]:
    """Labeled parts of the text that they were found in."""
    return [Stretch(one.label, one.score, text[one.start : one.end], one.start, one.end) for one in parts]
