"""Routes of a task's gate: show, set, delete."""

from typing import Annotated

from fastapi import Depends, Response
from msgspec.structs import replace

from onebert_server.contract.gates import GateFacts
from onebert_server.extensions.gate.documents import StoredGate
from onebert_server.extensions.gate.gates import Gates, no_gate
from onebert_server.extensions.gate.schemas import GateRequest
from onebert_server.http.pipeline import SEQ_HEADER
from onebert_server.http.routes.registry import Name, RowsRoute, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, in_thread, part_of
from onebert_server.http.strict import ContextOf

router = registry_router(RowsRoute)

GatesOf = Annotated[Gates, Depends(part_of(Gates))]


@router.get("/v1/tasks/{task}/gate")
async def gate(task: Name, runtime: RuntimeOf, gates: GatesOf, context: ContextOf) -> GateFacts:
    """Returns a task's gate; of its pinned rows only their number."""
    stored = await in_thread(runtime, gates.read, task, context)
    if stored is None:
        raise no_gate(task)
    return replace(_facts(task, stored), refused=await in_thread(runtime, gates.refusals, task, stored))


@router.put("/v1/tasks/{task}/gate")
async def set_gate(
    task: Name, body: GateRequest, response: Response, runtime: RuntimeOf, gates: GatesOf, context: ContextOf
) -> GateFacts:
    """Sets a task's gate in place of the one before; `min`, `max` and `slices` take `rows`, which the server keeps."""
    await in_thread(runtime, runtime.catalog.catch_up)
    stored, seq = await in_thread(runtime, gates.set, task, body.rules, body.rows, context)
    response.headers[SEQ_HEADER] = str(seq)
    return _facts(task, stored)


@router.delete("/v1/tasks/{task}/gate", status_code=204)
async def delete_gate(task: Name, response: Response, runtime: RuntimeOf, gates: GatesOf, context: ContextOf) -> None:
    """Deletes a task's gate with its rows."""
    seq = await in_thread(runtime, gates.delete, task, context)
    response.headers[SEQ_HEADER] = str(seq)


def _facts(task: str, stored: StoredGate) -> GateFacts:
    rules = stored.gate.model_dump(exclude_defaults=True)
    return GateFacts(task=task, digest=stored.gate.digest, rules=rules, rows=len(stored.rows))
