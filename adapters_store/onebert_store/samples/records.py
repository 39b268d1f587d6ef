"""The records of the sample store: samples, feedback, counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

Label: TypeAlias = str | float | list[str] | list[list[Any]] | None
"""A label, a number, sorted labels, or sorted spans `[start, end, label]` in code points; None: a version abstained."""


class Kind(StrEnum):
    """How somebody came to know the right label.

    Attributes:
        OUTCOME: it became known, whatever was answered; verdicts count no other kind, but reviews of spans.
        REVIEW: a person labeled a kept text, chosen by the answers.
        CORRECTION: a person objected to the answer that they saw, so right answers have fewer rows than they should.
    """

    OUTCOME = "outcome"
    REVIEW = "review"
    CORRECTION = "correction"


class Owner(NamedTuple):
    """The place of a task's rows: its id in the registry, and the id of its keeping if it keeps answers."""

    task: str
    keeping: str | None


@dataclass(frozen=True, slots=True)
class Retention:
    """The registry's entry for the id of a task.

    Attributes:
        task: the task's name; None if the task was deleted.
        days: days that answers are kept; None if none are.
        max_samples: number of the latest samples that are kept.
        unkept_at: the time when keeping ended last.
    """

    task: str | None = None
    days: int | None = None
    max_samples: int | None = None
    unkept_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Rows of a task that the registry does not know, as when an older registry is put back.

    Attributes:
        task: the task's name if the registry knows the task, but not that its texts are kept; then only rows with
            texts count.
        feedback: number of rows of feedback.
        since: the time they were first seen; None if they are new.
    """

    id: str
    task: str | None
    samples: int
    feedback: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One kept answer.

    Attributes:
        id: `X-Request-Id` of the response, `/`, index of the result.
        texts: the text, or the two texts of a pair.
        labels: the answered labels; none of a regression or an extracted span.
        score: the top score, if it is a probability; a regression's number, its first one.
        share: the probability with which this answer was kept; its weight in an estimate is 1 / share.
    """

    task: str
    id: str
    version: int
    at: datetime
    principal: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    score: float | None
    share: float


@dataclass(frozen=True, slots=True)
class Feedback:
    """The right label of one text, beside the answers of versions.

    Attributes:
        identifier: a row with the same task and identifier replaces the earlier one.
        answers: the label that each version answered when the feedback came.
        answer_id: id of the sample that it is about, with the sample's `version` and `share`; None: of a text.
        texts: None unless the task kept samples; they outlast the sample.
        explanation: free words of the person.
        reviewer: whether the principal could review, so that no one with less scope replaces the row.
        new_labels: labels of `right` that the version with the largest share lacked; verdicts leave the row out.
        text_id: an HMAC that equal texts share, by which verdicts count a text once. None without a key, and when read.
    """

    task: str
    identifier: str
    kind: Kind
    right: Label
    answers: Mapping[int, Label]
    at: datetime
    principal: str
    answer_id: str | None = None
    version: int | None = None
    share: float | None = None
    texts: tuple[str, ...] | None = field(default=None, repr=False)
    explanation: str | None = field(default=None, repr=False)
    reviewer: bool = False
    new_labels: tuple[str, ...] = ()
    text_id: str | None = None
