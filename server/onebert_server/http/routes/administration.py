"""Routes for administrators: keys and the audit trail."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query, Response

from onebert_server.access.principal import Action
from onebert_server.contract.administration import AuditResponse, KeyFacts, KeysResponse, MadeKey
from onebert_server.contract.declared import NAME
from onebert_server.http.routes.runtime_of import RuntimeOf, in_thread
from onebert_server.http.schemas.administration import KeyRequest, Time, change_of
from onebert_server.http.strict import PROBLEMS, ContextOf, StrictRoute
from onebert_server.limits import MAX_REF
from onebert_store.registry.grants import Grant, Quotas, Scope

# Changes on one page of the audit trail, and keys on one of their list.
MAX_CHANGES, MAX_KEYS = 1000, 256


async def _administers(context: ContextOf) -> None:
    """Admits an admin of all tasks only: one of some tasks could otherwise make itself a key for others."""
    context.principal.require_all(Action.ADMINISTER)


router = APIRouter(
    route_class=StrictRoute, responses=PROBLEMS, tags=["administration"], dependencies=[Depends(_administers)]
)


@router.post("/v1/keys", status_code=201)
async def create_key(
    body: Annotated[KeyRequest, Body()], response: Response, runtime: RuntimeOf, context: ContextOf
) -> MadeKey:
    """Makes a key; only this answer ever has the key itself."""
    scopes, quotas = frozenset(map(Scope, body.scopes)), Quotas(**vars(body.quotas))
    grant = Grant(body.name, scopes, tuple(body.tasks), body.default_task, quotas)
    record, key = await in_thread(runtime, runtime.key_poller.create, grant, body.expires_at, context.actor)
    response.headers["Cache-Control"] = "no-store"
    return MadeKey(key=key, **record.facts(datetime.now(UTC)))


@router.get("/v1/keys")
async def keys(
    runtime: RuntimeOf,
    after: Annotated[str, Query(pattern="^([0-9a-f]{12})?$", description="`next` of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_KEYS, description="keys of a page")] = MAX_KEYS,
) -> KeysResponse:
    """Lists the keys that were ever made, the oldest first, in pages; none of them itself."""
    records = await in_thread(runtime, runtime.registry.keys.page, after, limit + 1)
    now = datetime.now(UTC)
    next_id = records[limit - 1].id if len(records) > limit else None
    return KeysResponse(keys=[KeyFacts(**record.facts(now)) for record in records[:limit]], next=next_id)


@router.delete("/v1/keys/{key}", status_code=204)
async def revoke_key(key: Annotated[str, Path(max_length=MAX_REF)], runtime: RuntimeOf, context: ContextOf) -> None:
    """Revokes a key by its id, for good: here at once, on other replicas within five seconds."""
    await in_thread(runtime, runtime.key_poller.revoke, key, context.actor)


@router.get("/v1/audit")
async def audit(
    runtime: RuntimeOf,
    after: Annotated[int, Query(ge=0, lt=2**63, description="`next` of the page before")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_CHANGES, description="changes of a page")] = MAX_CHANGES,
    task: Annotated[str | None, Query(pattern=NAME)] = None,
    principal: Annotated[str | None, Query(max_length=256)] = None,
    since: Annotated[Time | None, Query(description="changes from then on")] = None,
) -> AuditResponse:
    """Lists changes, the oldest first, in pages: who, when, by which request, from where to where."""
    records = await in_thread(runtime, runtime.registry.feed.audit, after, limit + 1, task, principal, since)
    next_seq = records[limit - 1].seq if len(records) > limit else None
    return AuditResponse(changes=list(map(change_of, records[:limit])), next=next_seq)
