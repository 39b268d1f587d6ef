"""Routes of examples: a version of them at once, and its improvement."""

from fastapi import Request, Response

from onebert_server.access.principal import Action
from onebert_server.contract.examples import CreatedFacts, ImprovementFacts
from onebert_server.extensions.trainer.schemas import ExamplesRequest
from onebert_server.extensions.trainer.trainer import Improvement, Trainer
from onebert_server.http.cancel_scope import CancelScope
from onebert_server.http.routes.registry import Name, RowsRoute, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf
from onebert_server.http.routes.tasks import show_upload
from onebert_server.http.strict import ContextOf
from onebert_server.runtime import Runtime
from onebert_store.errors import TrainerOff

router = registry_router(RowsRoute)


@router.post("/v1/tasks/{task}/examples", status_code=201, responses={200: {"model": CreatedFacts}})
async def create(
    task: Name, body: ExamplesRequest, request: Request, response: Response, runtime: RuntimeOf, context: ContextOf
) -> CreatedFacts:
    """Makes the exact head of the examples a task's next version, live if it is the first; 200 if it is there already.

    With `improve` the default method is trained on them in the background; the task's gate, or without one its lead
    over the exact head, decides whether it becomes live in the head's place. Label names or descriptions alone
    give a version that compares a text with them; beside examples each is one more.
    """
    context.principal.require(Action.UPLOAD, task)
    trainer = _trainer(runtime)
    with CancelScope(context, request.receive):
        taken, facts, live, improvement = await trainer.create(task, body.rows, body.improve, context)
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
        improvement=None if improvement is None else _facts(improvement),
    )


@router.get("/v1/tasks/{task}/improvement")
async def improvement(task: Name, runtime: RuntimeOf, view: ViewOf) -> ImprovementFacts:
    """Returns how far the improvement of a task is; a server that starts again forgets it."""
    view.task(task, after=0, limit=0)
    return _facts(_trainer(runtime).improvement(task))


def _trainer(runtime: Runtime) -> Trainer:
    trainer = runtime.parts.find(Trainer)
    if trainer is None:
        raise TrainerOff("this server trains nothing: start it with --trainer, or ONEBERT_TRAINER=1")
    return trainer


def _facts(improvement: Improvement) -> ImprovementFacts:
    return ImprovementFacts(**{name: getattr(improvement, name) for name in ImprovementFacts.__struct_fields__})
