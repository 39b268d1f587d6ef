"""Kept samples, the feedback on them, and the queue of texts that a person shall label."""

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from onebert_server.contract.answers import Result
from onebert_server.contract.declared import STRICT, Declared, Rule

KINDS = ("outcome", "review", "correction")

# An order of the review queue, which has the texts first whose answer is least certain, or on which versions differ.
Order: TypeAlias = Literal["margin", "disagreement"]


class RightSpan(Declared, frozen=True, omit_defaults=True):
    """The slice `text[start:end]` (code points), of a token task with its label; of a span task in the context."""

    _config = STRICT

    start: Annotated[int, Rule(ge=0, lt=2**31)]
    end: Annotated[int, Rule(ge=0, lt=2**31)]
    label: str | None = None


class RightLabel(Declared, frozen=True, kw_only=True, omit_defaults=True):
    """The right label, in the field of the task's type, and how somebody came to know it."""

    kind: Annotated[str, Rule(one_of=KINDS)]
    label: Annotated[str | None, Rule("of a single_label task")] = None
    labels: Annotated[list[str] | None, Rule("of a multi_label task")] = None
    spans: Annotated[list[RightSpan] | None, Rule("of a token or span task")] = None
    value: Annotated[float | None, Rule("of a regression")] = None
    new_labels: Annotated[list[str] | None, Rule("those of its labels that the newest version lacks")] = None


class FeedbackRow(RightLabel, frozen=True, kw_only=True, omit_defaults=True):
    """Feedback whose text is kept."""

    identifier: str
    text: str
    text_pair: str | None = None
    at: datetime
    explanation: str | None = None


class FeedbackRows(Declared, frozen=True):
    """A page of a task's feedback, by identifier; `next` is the next page's `after`, null on the last page."""

    feedback: list[FeedbackRow]
    next: str | None = None


class SampleRow(Declared, frozen=True, kw_only=True, omit_defaults=True):
    """One kept answer, with the latest feedback on it."""

    id: str
    version: int
    at: datetime
    text: str
    text_pair: str | None = None
    labels: Annotated[list[str], Rule("the answered labels; none of a regression or an extracted span")]
    score: Annotated[float | None, Rule("the top score, if it is a probability; the number of a regression")] = None
    share: Annotated[float, Rule("probability with which it was kept; its weight in an estimate is 1 / share")]
    right: RightLabel | None = None


class SampleRows(Declared, frozen=True):
    """A page of a task's kept answers, by id; `next` is the next page's `after`, null on the last page."""

    samples: list[SampleRow]
    next: str | None = None


class VersionAnswer(Result, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of one version, with its 20 best scores."""

    version: int


class ReviewItem(Declared, frozen=True, kw_only=True, omit_defaults=True):
    """A kept text without feedback; the answer of the version with the largest share comes first."""

    id: Annotated[str, Rule("which feedback on it names")]
    text: str
    text_pair: str | None = None
    at: datetime
    share: Annotated[float, Rule("probability with which it was kept")]
    answers: list[VersionAnswer]


class ReviewQueue(Declared, frozen=True, kw_only=True):
    """The texts to label next, the most wanted first."""

    _document = "ReviewResponse"

    task: str
    task_type: str
    labels: Annotated[list[str], Rule("of the version with the largest share, in its order")]
    compared: Annotated[int, Rule("latest texts without feedback from which these are chosen")]
    items: list[ReviewItem]
