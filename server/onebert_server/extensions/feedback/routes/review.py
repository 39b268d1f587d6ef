"""Routes for people who label or decide: the review queue, the lists of kept answers and of feedback, verdicts."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query, Request

from onebert_encoder.answering.results import fields_of
from onebert_server.contract.review import (
    FeedbackRow,
    FeedbackRows,
    Order,
    ReviewItem,
    ReviewQueue,
    RightLabel,
    RightSpan,
    SampleRow,
    SampleRows,
    VersionAnswer,
)
from onebert_server.contract.tasks import VerdictsResponse
from onebert_server.extensions.feedback.given import lacking
from onebert_server.extensions.feedback.ranking import ScoredText
from onebert_server.extensions.feedback.service import ServiceOf
from onebert_server.http.cancel_scope import CancelScope
from onebert_server.http.routes.registry import AliasName, Name, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf, in_thread
from onebert_server.http.strict import ContextOf
from onebert_server.versions.facts import Facts
from onebert_store.comparison import LEVEL
from onebert_store.file.manifest import PER_TOKEN
from onebert_store.samples.records import Feedback, Label

router = registry_router()

# Rows of a page, each with two texts and an explanation at most; texts of a queue; scores of an answer in it.
MAX_PAGE, MAX_QUEUE, MAX_SCORES = 50, 100, 20

# PostgreSQL rejects text with a zero byte.
After = Annotated[str, Query(max_length=256, pattern=r"^[^\x00]*$", description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="rows of a page")]


@router.get("/v1/tasks/{task}/review")
async def review(
    task: Name,
    request: Request,
    service: ServiceOf,
    context: ContextOf,
    by: Order = "margin",
    limit: Annotated[int, Query(ge=1, le=MAX_QUEUE, description="texts of the queue")] = 20,
) -> ReviewQueue:
    """Returns kept texts without feedback, the most wanted first, each answered anew by all versions of `live`.

    They are chosen from the latest 1,000, or from fewer that half of the request's time is enough for.
    """
    with CancelScope(context, request.receive):
        queue = await service.reviews.queue(task, by, limit, context)
    items = [
        ReviewItem(
            id=sample.id, **_texts(sample.texts), at=sample.at, share=sample.share, answers=[*map(_answer, answers)]
        )
        for sample, answers in queue.chosen
    ]
    facts = queue.facts
    return ReviewQueue(task=task, task_type=facts.task_type, labels=facts.labels, compared=queue.compared, items=items)


@router.get("/v1/tasks/{task}/feedback")
async def feedback_rows(
    task: Name, runtime: RuntimeOf, service: ServiceOf, context: ContextOf, after: After = "", limit: Limit = MAX_PAGE
) -> FeedbackRows:
    """Lists a task's feedback whose text is kept, by identifier, in pages."""
    page, end, facts = await in_thread(runtime, service.reviews.feedback, task, after, limit, context)
    rows = [
        FeedbackRow(
            identifier=feedback.identifier,
            **_texts(feedback.texts or ()),
            at=feedback.at,
            explanation=feedback.explanation,
            **_right(feedback, facts),
        )
        for feedback in page
    ]
    return FeedbackRows(rows, end)


@router.get("/v1/tasks/{task}/sample-rows")
async def sample_rows(
    task: Name, runtime: RuntimeOf, service: ServiceOf, context: ContextOf, after: After = "", limit: Limit = MAX_PAGE
) -> SampleRows:
    """Lists a task's kept answers by id, in pages, each with the latest feedback on it."""
    page, end, facts = await in_thread(runtime, service.reviews.samples, task, after, limit, context)
    rows = [
        SampleRow(
            id=sample.id,
            version=sample.version,
            at=sample.at,
            **_texts(sample.texts),
            labels=[*sample.labels],
            score=sample.score,
            share=sample.share,
            right=None if feedback is None else RightLabel(**_right(feedback, facts)),
        )
        for sample, feedback in page
    ]
    return SampleRows(rows, end)


@router.get("/v1/tasks/{task}/aliases/{alias}/verdicts")
async def verdicts(task: Name, alias: AliasName, view: ViewOf, service: ServiceOf) -> VerdictsResponse:
    """Returns wins, losses and e-values of an alias's other versions beside the largest share, by outcomes alone."""
    target = view.alias(task, alias).target
    facts = await service.verdicts.of(task, target)
    return VerdictsResponse(task, alias, target.version, LEVEL, facts)


def _texts(texts: Sequence[str]) -> dict[str, Any]:
    return dict(zip(("text", "text_pair"), texts, strict=False))


def _answer(scored: ScoredText) -> VersionAnswer:
    return VersionAnswer(version=scored.facts.version, **fields_of(scored.prediction, MAX_SCORES))


def _right(feedback: Feedback, facts: Facts | None) -> dict[str, Any]:
    spans, new = facts is not None and facts.task_type in PER_TOKEN, lacking(facts, feedback.new_labels)
    return {"kind": feedback.kind, "new_labels": new or None, **_field(feedback.right, spans)}


def _field(right: Label, spans: bool) -> dict[str, Any]:
    match right:
        case str():
            return {"label": right}
        case [[*_], *_]:
            return {"spans": [RightSpan(*span) for span in right]}
        case list():
            return {"spans" if spans else "labels": right}
    return {"value": right}
