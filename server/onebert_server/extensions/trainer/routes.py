"""The route of examples: a version of them at once."""

from fastapi import Request, Response

from onebert_server.access.principal import Action
from onebert_server.contract.examples import CreatedFacts
from onebert_server.extensions.trainer.schemas import ExamplesRequest
from onebert_server.extensions.trainer.trainer import Trainer
from onebert_server.http.cancel_scope import CancelScope
from onebert_server.http.routes.registry import Name, RowsRoute, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf
from onebert_server.http.routes.tasks import show_upload
from onebert_server.http.strict import ContextOf
from onebert_store.errors import TrainerOff

router = registry_router(RowsRoute)


@router.post("/v1/tasks/{task}/examples", status_code=201, responses={200: {"model": CreatedFacts}})
async def create(
    task: Name, body: ExamplesRequest, request: Request, response: Response, runtime: RuntimeOf, context: ContextOf
) -> CreatedFacts:
    """Makes the exact head of the examples a task's next version, live if it is the first; 200 if it is there already.

    Label names or descriptions alone give a version that compares a text with them; beside examples each is one more.
    """
    context.principal.require(Action.UPLOAD, task)
    trainer = runtime.parts.find(Trainer)
    if trainer is None:
        raise TrainerOff("this server trains nothing: start it with --trainer, or ONEBERT_TRAINER=1")
    with CancelScope(context, request.receive):
        taken, facts, live = await trainer.create(task, body.rows, context)
    entry = taken.entry
    show_upload(response, task, taken)
    return CreatedFacts(
        task=task,
        version=entry.version,
        digest=entry.digest,
        live=live,
        metric=facts["metric"],
        score=facts["score"],
        notes=facts["notes"],
    )
