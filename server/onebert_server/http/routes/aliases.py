"""Alias routes. An alias moves by compare-and-set: `If-Match` has the version that the caller expects."""

import dataclasses
import re
from typing import Annotated, Literal

from fastapi import Query, Request, Response
from msgspec.structs import replace
from starlette.exceptions import HTTPException

from onebert_server.contract.moves import words
from onebert_server.contract.tasks import AliasPlace
from onebert_server.http.pipeline import SEQ_HEADER
from onebert_server.http.routes.registry import AliasName, Name, header, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf, in_thread
from onebert_server.http.schemas.tasks import AliasRequest, rollout_of
from onebert_server.http.strict import BecauseOf, ContextOf
from onebert_server.versions.moves import RequestedMove
from onebert_store.errors import InvalidInput
from onebert_store.registry.names import check_alias
from onebert_store.registry.records import Alias
from onebert_store.registry.target import Target

router = registry_router()

AT = header("If-Match", '^"[1-9][0-9]{0,9}([.][0-9a-f]{16})?"$', "The alias's `tag` now, quoted: its version.")
NEW = header("If-None-Match", r"^\*$", "The alias is new.")


@router.get("/v1/tasks/{task}/aliases/{alias}")
async def alias(task: Name, alias: AliasName, response: Response, view: ViewOf) -> AliasPlace:
    """Returns what an alias means and meant before; `ETag` is its `tag`, quoted, as `If-Match` takes it."""
    at = view.alias(task, alias)
    return _place(task, alias, at, view.back(task, at), response)


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
    """Gives an alias a meaning if its tag is as `If-Match: "<tag>"` says, or it is new with `If-None-Match: *`.

    Versions that answer and are not in memory are loaded first, a shadow afterwards, if there is room. The task's gate,
    if there is one for this alias, must pass for versions that did not answer before: 409 `gate-failed` has its report.
    `force` moves past the gate, and takes a `message`.
    """
    check_alias(alias)
    expected = _expected(request)
    await in_thread(runtime, runtime.catalog.catch_up)
    # The move is made only if the alias still is what it is now.
    before = runtime.directory.alias_of(task, alias)
    because = dataclasses.replace(context, message=body.message)
    moved = await runtime.moves.move(RequestedMove(task, alias, body.target, expected), because, force=body.force)
    if wait and runtime.presence is not None:
        await runtime.presence.all_at(moved.seq, context, runtime.registrars)
    response.headers[SEQ_HEADER] = str(moved.seq)
    place = _place(task, alias, moved.alias, runtime.directory.back(task, moved.alias), response)
    if before is not None and before.target == moved.alias.target:
        return place
    return replace(place, what=_words(before, moved.alias), gate=[*moved.reports] or None)


@router.delete(
    "/v1/tasks/{task}/aliases/{alias}", status_code=204, openapi_extra={"parameters": [AT | {"required": True}]}
)
async def delete_alias(
    task: Name, alias: AliasName, request: Request, response: Response, runtime: RuntimeOf, context: BecauseOf
) -> None:
    """Deletes an alias if its tag is as `If-Match: "<tag>"` says; its versions stay."""
    check_alias(alias)
    expected = _expected(request)
    if expected is None:
        raise InvalidInput('an alias is deleted with If-Match: "<current tag>"')
    seq = await in_thread(runtime, runtime.catalog.delete_alias, task, alias, expected, context)
    response.headers[SEQ_HEADER] = str(seq)


def _expected(request: Request) -> str | None:
    if_match, if_none_match = request.headers.getlist("if-match"), request.headers.getlist("if-none-match")
    if not if_match and not if_none_match:
        raise HTTPException(428, 'send If-Match: "<current tag>", or If-None-Match: * for a new alias')
    if not if_match and if_none_match == ["*"]:
        return None
    tag = if_match[0] if len(if_match) == 1 and not if_none_match else ""
    match = re.fullmatch(r'"([1-9][0-9]{0,9}([.][0-9a-f]{16})?)"', tag)
    if match is None:
        raise InvalidInput('the condition must be one If-Match: "<current tag>", or If-None-Match: *')
    return match[1]


def _words(before: Alias | None, after: Alias) -> str:
    now = rollout_of(after.target)
    if before is None:
        return words(None, now, None, after.version)
    return words(rollout_of(before.target), now, before.version, after.version, before.goes_back(after.target))


def _place(task: str, alias: str, at: Alias, back: Target | None, response: Response) -> AliasPlace:
    response.headers["ETag"] = f'"{at.target.tag}"'
    targets = rollout_of(at.target), back and rollout_of(back)
    return AliasPlace(task, alias, at.version, back and back.version, *targets)
