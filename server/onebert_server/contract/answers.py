"""Answers to questions."""

from typing import Annotated

from onebert_server.contract.declared import Declared, Rule
from onebert_server.limits import MAX_LEFT_OUT


class LabeledSpan(Declared, frozen=True):
    """The slice `text[start:end]` (code points) with its label and the label's score."""

    _document = "Labeled"

    start: int
    end: int
    label: str
    score: float


class AnswerSpan(Declared, frozen=True):
    """The slice `context[start:end]` (code points) that answers, with its probability."""

    _document = "FoundSpan"

    start: int
    end: int
    text: str
    score: float


class WordEffect(Declared, frozen=True):
    """The effect of the slice `start:end` (code points) of a text; positive if it raises the explained number."""

    field: Annotated[str, Rule(one_of=("text", "text_pair"))]
    start: int
    end: int
    effect: float


class Explanation(Declared, frozen=True):
    """Which words an answer is owed to: each effect is the score of `label` less that score without the words."""

    method: Annotated[str, Rule(one_of=("occlusion",))]
    label: Annotated[str, Rule("whose score is explained: the answer's")]
    words: Annotated[
        list[WordEffect],
        Rule(
            "in the order of the text, neighbors together where there are more; none where nothing is left of a text "
            "without its only word",
            max_length=MAX_LEFT_OUT,
        ),
    ]


class Result(Declared, frozen=True, kw_only=True, omit_defaults=True):
    """One answer; which of its fields there are depends on the task type.

    Tasks on whole texts have `label`, `score` and `scores`, best first; where labels have thresholds also `labels`,
    those over theirs. Token tasks have `words`, and `entities` if their labels are BIO. Span tasks have `answers`, best
    first.
    """

    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    labels: list[str] | None = None
    words: list[LabeledSpan] | None = None
    entities: list[LabeledSpan] | None = None
    answers: list[AnswerSpan] | None = None
    abstained: Annotated[bool | None, Rule("of tasks with a rule for it: the task does not know")] = None
    energy: Annotated[float | None, Rule("where it is asked for: the higher, the less is known")] = None
    tokens: Annotated[int | None, Rule("tokens of the input, special tokens included")] = None
    truncated: Annotated[bool | None, Rule("whether the input was cut to the task's max_length")] = None
    windows: Annotated[int | None, Rule("in how many windows it was read, of tasks that read by them")] = None
    explanation: Annotated[Explanation | None, Rule("of a request with `explain`")] = None


class ResultError(Declared, frozen=True):
    """Why there is no answer; `code` is from the table in docs/reference/errors.md."""

    code: str
    title: str
    detail: str


class TaskResult(Result, frozen=True, kw_only=True, omit_defaults=True):
    """One answer and the version that made it; or why there is none.

    Of an answer that is not finite the version and `error` alone; of a question that a request with `partial` misses
    the task, as it was asked, and `error`.
    """

    task: str
    version: int | None = None
    digest: str | None = None
    error: ResultError | None = None


class ClassifyResponse(Declared, frozen=True):
    """Answers in the order of the inputs, all by one version."""

    task: str
    version: int
    digest: str
    results: list[Result]


class ClassifyItemsResponse(Declared, frozen=True):
    """Answers in the order of the items or tasks."""

    results: list[TaskResult]
