"""One item of feedback as a client gives it, and its right label in the form that answers are compared in."""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, cast

import pydantic
from pydantic import ConfigDict, Field, model_validator

from onebert_encoder.answering.results import Answer, answer_of
from onebert_encoder.answering.stretches import answer_labels
from onebert_encoder.text.tokens import Text as Input
from onebert_encoder.text.tokens import halves_of, text_of
from onebert_server.contract.review import RightSpan
from onebert_server.http.schemas.texts import Text
from onebert_server.observed import OTHER
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput
from onebert_store.file.fields import MAX_NUMBER, Finite, Line, Strict, label_fault, spelling
from onebert_store.samples.records import Label
from onebert_store.samples.store import SampleStore
from onebert_store.tables.cells import BadRow
from onebert_store.tables.spans import AT_PUNCTUATION, BETWEEN_BLANKS, Span, tagged, used_spans

# Spans of one text, labels of one that no version has, and characters of an explanation.
MAX_SPANS, MAX_NEW, MAX_EXPLANATION = 64, 64, 4096


_Place = Annotated[int, Field(ge=0, lt=2**31)]
# As training data have it: start, end and label.
_Triple = Annotated[tuple[_Place, _Place, Line], pydantic.Strict(False)]


class Given(Strict):
    """The right label of a kept answer, by its id, or of a text."""

    # Its fields exclude each other.
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"task": "tone", "text": "where is my order?", "label": "question", "identifier": "order-7"}]
        }
    )

    id: Annotated[Line | None, Field(max_length=96, description="X-Request-Id of the answer, /, index in results")] = (
        None
    )
    task: Line | None = None
    text: Text | None = None
    text_pair: Text | None = None
    label: Annotated[Line | None, Field(description="of a single_label task")] = None
    labels: Annotated[list[Line] | None, Field(max_length=1024, description="of a multi_label task")] = None
    spans: Annotated[
        list[RightSpan | _Triple] | None, Field(max_length=MAX_SPANS, description="of a token or span task")
    ] = None
    value: Annotated[Finite | None, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, description="of a regression")] = None
    kind: Annotated[
        Literal["outcome", "review", "correction"],
        Field(description="outcome: it became known; review: a kept text was labeled; correction: of a shown answer"),
    ] = "outcome"
    identifier: Annotated[
        Line | None, Field(description="feedback with the same one is replaced; null: id, or HMAC of the text")
    ] = None
    explanation: Annotated[
        str | None, Field(max_length=MAX_EXPLANATION, description="kept, encrypted, where the text is kept")
    ] = None

    @model_validator(mode="after")
    def _is_about_one_thing(self) -> "Given":
        if (self.id is None) == (self.task is None or self.text is None) or (self.id and (self.task or self.text_pair)):
            raise ValueError("takes an id, or a task and a text")
        if sum(right is not None for right in (self.label, self.labels, self.spans, self.value)) != 1:
            raise ValueError("takes one of label, labels, spans and value")
        return self

    @property
    def _spans(self) -> list[Span]:
        triples = (each if isinstance(each, tuple) else (each.start, each.end, each.label) for each in self.spans or ())
        return [Span(start, end, "" if label is None else label) for start, end, label in triples]

    @property
    def input(self) -> Input | None:
        """The text, or the pair; None with an id."""
        return self.text and text_of(self.text, self.text_pair)

    def right(self, versions: Sequence[Facts], text: Input, keeps: bool) -> tuple[Label, tuple[str, ...]]:
        """Returns the right label of a text, and the labels in it that the first of the versions lacks.

        Raises InvalidInput for another form than the task's answers; for a label that all versions lack if the text is
        not kept (`keeps`), since nobody could train on it; and for another spelling of a label that one has.
        """
        kind = versions[0].task_type
        field = _FIELDS[kind]
        right = getattr(self, field)
        if right is None:
            raise InvalidInput(f"the feedback on a {kind} task has {field}")
        known = {label for facts in versions for label in answer_labels(facts)}
        named = {"label": [self.label], "labels": self.labels, "spans": [span.label or None for span in self._spans]}
        labels = named.get(field) or ()
        unknown = {label for label in labels if (label not in known if kind != "span" else label is not None)}
        spellings = {spelling(label): label for label in sorted(known)}
        for label in unknown - {None}:
            if name := spellings.get(spelling(str(label))):
                differ = "in case, spaces or invisible characters alone"
                raise InvalidInput(f"a label of the feedback differs from the task's {name} {differ}: give that one")
        if unknown and (kind == "span" or not keeps or any(map(_is_fault, unknown))):
            unkept = "" if keeps or kind == "span" else "; a new one is kept where texts are, and the task keeps none"
            some = ", ".join(sorted(known)[:8])
            raise InvalidInput(f"a label of the feedback is not one of the task's, {some}{unkept}")
        if len(unknown) > MAX_NEW:
            raise InvalidInput(f"{len(unknown)} labels of the feedback are new, more than {MAX_NEW}")
        new = tuple(lacking(versions[0], dict.fromkeys(label for label in labels if label is not None)))
        if self.spans is not None:
            if kind == "span" and len(self.spans) > 1:
                raise InvalidInput("the feedback on a span task has one span, or none")
            tags = None if kind == "span" else {tag for facts in versions for tag in facts.labels}
            return _as_used(self._spans, halves_of(text)[-1], tags), new
        return sorted(set(right)) if isinstance(right, list) else right, new


def label_of(facts: Facts, answer: Answer) -> Label:
    """Returns a version's answer in the same form as the right label."""
    short = answer_of(facts.task_type, answer)
    if not isinstance(short, tuple):
        return short
    return cast(Label, [[*item] if isinstance(item, tuple) else item for item in short])


_FIELDS = {"single_label": "label", "multi_label": "labels", "token": "spans", "span": "spans", "regression": "value"}


def lacking(facts: Facts | None, labels: Iterable[str]) -> list[str]:
    """Returns the labels that a version lacks; all of them if its manifest cannot be read."""
    known = {*answer_labels(facts)} if facts is not None else set[str]()
    return [label for label in labels if label not in known]


def new_labels(samples: SampleStore, task: str, facts: Facts | None) -> dict[str, int]:
    """Counts the rows of feedback by the labels that a version lacks: the most frequent ones, and OTHER."""
    labels, others = samples.new_labels(task, frozenset(answer_labels(facts)) if facts is not None else frozenset())
    return labels | ({OTHER: labels.get(OTHER, 0) + others} if others else {})


def _is_fault(label: str | None) -> bool:
    return label is None or label == "O" or label_fault(label) is not None


def _as_used(spans: Sequence[Span], text: str, labels: Collection[str] | None) -> list[list[Any]]:
    """Returns spans as a training would use them; raises InvalidInput for those that it would leave out.

    Args:
        labels: those of all versions that may answer; None if spans have none.
    """
    for span in spans:
        try:
            used_spans([span], text)
        except BadRow:
            raise InvalidInput(
                f"the span from {span.start} to {span.end} is not within the text, or is empty"
            ) from None
    used = used_spans(spans, text)
    for (_, before, _), (start, end, _) in pairwise(used):
        if start < before:
            raise InvalidInput(f"the span from {start} to {end} overlaps another one")
    if labels is None:
        return [[start, end] for start, end, _ in used]
    for span in spans:
        try:
            _fit([span._replace(label="any")], text, ())
        except BadRow:
            raise InvalidInput(f"the span from {span.start} to {span.end} cuts a word") from None
    try:
        _fit(spans, text, labels)
    except BadRow as problem:
        raise InvalidInput(f"no training would use these spans: {problem}") from None
    return [[*span] for span in used]


def _fit(spans: Sequence[Span], text: str, labels: Collection[str]) -> None:
    try:
        tagged(text, spans, BETWEEN_BLANKS, labels)
    except BadRow:
        tagged(text, spans, AT_PUNCTUATION, labels)
