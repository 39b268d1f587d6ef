"""Routes of a task's kept answers (show, set, stop, delete one), and of feedback."""

from typing import Annotated

from fastapi import Path, Request, Response

from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.contract.feedback import FeedbackResponse, SamplesFacts
from onebert_server.extensions.feedback.schemas import FeedbackRequest, SamplesRequest
from onebert_server.extensions.feedback.service import FeedbackService, ServiceOf
from onebert_server.http.cancel_scope import CancelScope
from onebert_server.http.pipeline import SEQ_HEADER
from onebert_server.http.routes.registry import Name, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, in_thread
from onebert_server.http.strict import ContextOf
from onebert_server.runtime import Runtime
from onebert_store.errors import SamplesKeyNeeded
from onebert_store.file.fields import Line

router = registry_router()

AnswerId = Annotated[
    Line, Path(description="X-Request-Id of the answer, /, index in results; or identifier of feedback")
]


@router.get("/v1/tasks/{task}/samples")
async def samples(task: Name, runtime: RuntimeOf, service: ServiceOf, context: ContextOf) -> SamplesFacts:
    """Shows how much of a task's answers is kept, and how many are kept now."""
    _check(task, runtime, context)
    return await in_thread(runtime, _facts, runtime, service, task)


@router.put("/v1/tasks/{task}/samples")
async def set_samples(
    task: Name, body: SamplesRequest, response: Response, runtime: RuntimeOf, service: ServiceOf, context: ContextOf
) -> SamplesFacts:
    """Keeps answers of a task with their texts, encrypted: a share, for some days, the latest ones.

    409 `samples-key-needed` if the server has no key.
    """
    _check(task, runtime, context)
    if not service.store.has_key:
        raise SamplesKeyNeeded("texts are kept encrypted: set ONEBERT_SAMPLES_KEY, and start the server again")
    change = runtime.registry.set_keeping, context, task, body.keeping
    seq = await in_thread(runtime, runtime.catalog.change, *change)
    response.headers[SEQ_HEADER] = str(seq)
    return await in_thread(runtime, _facts, runtime, service, task)


@router.delete("/v1/tasks/{task}/samples", status_code=204)
async def delete_samples(
    task: Name, response: Response, runtime: RuntimeOf, service: ServiceOf, context: ContextOf
) -> None:
    """Keeps no more answers of a task, and deletes the kept ones, with texts and explanations in feedback."""
    context.principal.require(Action.KEEP, task)
    owner = await in_thread(runtime, service.store.owner, task)
    seq = await in_thread(runtime, runtime.catalog.change, runtime.registry.delete_keeping, context, task)
    await in_thread(runtime, service.store.delete_texts, owner.task, context.deadline)
    response.headers[SEQ_HEADER] = str(seq)


@router.delete("/v1/tasks/{task}/samples/{id:path}", status_code=204)
async def delete_sample(task: Name, id: AnswerId, runtime: RuntimeOf, service: ServiceOf, context: ContextOf) -> None:
    """Deletes one kept answer and the text and explanation of feedback on it, or with this identifier."""
    _check(task, runtime, context)
    await in_thread(runtime, service.keeper.delete_sample, task, id, context.deadline)


@router.post("/v1/feedback", response_model_exclude_none=True)
async def feedback(body: FeedbackRequest, request: Request, service: ServiceOf, context: ContextOf) -> FeedbackResponse:
    """Records the right labels of 1 to 64 kept answers or texts: all, or none.

    Every version of the task's `live` answers each text, and the row has all answers beside the right label.
    """
    with CancelScope(context, request.receive):
        rows = await service.recorder.record(body.data, context)
    return FeedbackResponse(rows)


def _check(task: str, runtime: Runtime, context: Context) -> None:
    context.principal.require(Action.KEEP, task)
    runtime.directory.task(task, limit=0, who=context.principal)


def _facts(runtime: Runtime, service: FeedbackService, task: str) -> SamplesFacts:
    count, keeping = service.store.count(task), runtime.directory.keepings.get(task)
    if keeping is None:
        return SamplesFacts(task=task, kept=count)
    return SamplesFacts(task=task, share=keeping.share, days=keeping.days, most=keeping.most, kept=count)
