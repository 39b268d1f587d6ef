"""Alias routes. An alias moves by compare-and-set: `If-Match` has the version that the caller expects."""

import re
from typing import Annotated, Literal

from fastapi import Path, Query, Request, Response
from starlette.exceptions import HTTPException

from onebert_server.contract.declared import ALIAS
from onebert_server.contract.tasks import AliasPlace
from onebert_server.http.pipeline import SEQ_HEADER
from onebert_server.http.routes.registry import Name, header, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf, in_thread
from onebert_server.http.schemas.tasks import AliasRequest
from onebert_server.http.strict import ContextOf
from onebert_server.versions.target import Target
from onebert_store.errors import InvalidInput
from onebert_store.registry.names import check_alias, check_name
from onebert_store.registry.records import Alias

router = registry_router()

AliasName = Annotated[str, Path(json_schema_extra={"pattern": ALIAS})]
AT = header("If-Match", '^"[1-9][0-9]{0,9}"$', "The version where the alias is now, quoted.")
NEW = header("If-None-Match", r"^\*$", "The alias is new.")


@router.get("/v1/tasks/{task}/aliases/{alias}")
async def alias(task: Name, alias: AliasName, response: Response, view: ViewOf) -> AliasPlace:
    """Returns an alias's version and its previous one; `ETag` is the version, quoted, as `If-Match` takes it."""
    check_name(task)
    return _place(task, alias, view.alias(task, alias), response)


@router.put("/v1/tasks/{task}/aliases/{alias}", openapi_extra={"parameters": [AT, NEW]})
async def move_alias(
    task: Name,
    alias: AliasName,
    body: AliasRequest,
    request: Request,
    response: Response,
    runtime: RuntimeOf,
    context: ContextOf,
    wait: Annotated[Literal["all"] | None, Query(description="answer when every live replica shows it")] = None,
) -> AliasPlace:
    """Points an alias at a version if it is where `If-Match: "<version>"` says, or new with `If-None-Match: *`.

    A version that is not in memory is loaded first. Then the task's gate, if there is one for this alias, must pass:
    409 `gate-failed` has its report. `force` moves past the gate.
    """
    check_name(task)
    check_alias(alias)
    expected = _expected(request)
    await in_thread(runtime, runtime.catalog.look)
    async with runtime.catalog.in_memory(task, body.version, context):
        if not body.force:
            await runtime.gates.require(task, alias, body.version, expected, body.report, context)
        arguments = task, alias, body.version, expected, context, body.message
        moved, seq = await in_thread(runtime, runtime.catalog.move_alias, *arguments)
    if wait and runtime.presence is not None:
        await runtime.presence.all_at(seq, context, runtime.registrars)
    response.headers[SEQ_HEADER] = str(seq)
    return _place(task, alias, moved, response)


@router.delete(
    "/v1/tasks/{task}/aliases/{alias}", status_code=204, openapi_extra={"parameters": [AT | {"required": True}]}
)
async def delete_alias(
    task: Name, alias: AliasName, request: Request, response: Response, runtime: RuntimeOf, context: ContextOf
) -> None:
    """Deletes an alias if it is where `If-Match: "<version>"` says; its version stays."""
    check_name(task)
    check_alias(alias)
    expected = _expected(request)
    if expected is None:
        raise InvalidInput('an alias is deleted with If-Match: "<current version>"')
    seq = await in_thread(runtime, runtime.catalog.delete_alias, task, alias, expected, context)
    response.headers[SEQ_HEADER] = str(seq)


def _expected(request: Request) -> int | None:
    if_match, if_none_match = request.headers.getlist("if-match"), request.headers.getlist("if-none-match")
    if not if_match and not if_none_match:
        raise HTTPException(428, 'send If-Match: "<current version>", or If-None-Match: * for a new alias')
    if not if_match and if_none_match == ["*"]:
        return None
    found = re.fullmatch(r'"([1-9][0-9]{0,9})"', if_match[0]) if len(if_match) == 1 and not if_none_match else None
    if found is None:
        raise InvalidInput('the condition must be one If-Match: "<current version>", or If-None-Match: *')
    return int(found[1])


def _place(task: str, alias: str, at: Alias | Target, response: Response) -> AliasPlace:
    response.headers["ETag"] = f'"{at.version}"'
    return AliasPlace(task=task, alias=alias, version=at.version, previous=at.previous)
