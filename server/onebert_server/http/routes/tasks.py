"""Routes of the registry: upload, list, describe, download, delete, and aliases by compare-and-set."""

import asyncio
import functools
import math
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from onebert_server.access.context import Context
from onebert_server.http.digests import SentDigests
from onebert_server.http.middleware import SEQ_HEADER
from onebert_server.http.patience import Patience
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf
from onebert_server.http.schemas.common import ALIAS, NAME
from onebert_server.http.schemas.tasks import (
    AliasRequest,
    AliasResponse,
    ChangeResponse,
    ChangesResponse,
    RenameRequest,
    TaskResponse,
    TasksResponse,
    TaskSummary,
    Uploaded,
    VersionResponse,
    VersionSummary,
)
from onebert_server.http.strict import PROBLEMS, Answer, ContextOf, StrictRoute, require_media_type
from onebert_server.limits import MAX_REF
from onebert_server.runtime import Runtime
from onebert_server.versions.catalog import Taken
from onebert_server.versions.version import TaskEntry, Version
from onebert_server.versions.view import View
from onebert_store.errors import InvalidInput, OneBertError
from onebert_store.registry.names import check_alias, check_name
from onebert_store.registry.records import Alias

T = TypeVar("T")


async def _seen(runtime: RuntimeOf, context: ContextOf) -> None:
    """Waits until this replica shows the change that the caller wants to be seen."""
    await runtime.directory.position.seen(context)


router = APIRouter(route_class=StrictRoute, responses=PROBLEMS, tags=["tasks"], dependencies=[Depends(_seen)])

# The rule is for readers of the OpenAPI document; the store checks names.
Name = Annotated[str, Path(json_schema_extra={"pattern": NAME})]
AliasName = Annotated[str, Path(json_schema_extra={"pattern": ALIAS})]
VersionNumber = Annotated[int, Path(ge=1, lt=2**31)]
# Tasks of one page of the list.
MAX_PAGE = 1000
OCTETS = "application/octet-stream"


def _header(name: str, pattern: str, description: str) -> dict[str, Any]:
    """A header field for the OpenAPI document; the functions below read the request's own."""
    schema = {"type": "string", "pattern": pattern}
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}


FILE = {"content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}}}
UPLOAD = {
    "requestBody": {"required": True, **FILE},
    "parameters": [_header("Content-Digest", "^sha-(256|512)=:.+:$", "What the body must hash to (RFC 9530).")],
}
AT = _header("If-Match", '^"[1-9][0-9]{0,9}"$', "The version where the alias is now, quoted.")
NEW = _header("If-None-Match", r"^\*$", "The alias is new.")


@router.put("/v1/tasks/{task}/versions", status_code=201, responses={200: {"model": Uploaded}}, openapi_extra=UPLOAD)
async def upload(task: Name, request: Request, response: Response, runtime: RuntimeOf, context: ContextOf) -> Uploaded:
    """Takes a delta file as the next version of a task; 200 where the task has the content already.

    The file is checked, folded and held against its golden logits before it is stored; a first version is live.
    """
    check_name(task)
    require_media_type(request, OCTETS)
    try:
        taken = await _receive(task, request, runtime, context)
    except (OneBertError, HTTPException) as error:
        runtime.metrics.count_upload(error.code if isinstance(error, OneBertError) else str(error.status_code))
        raise
    runtime.metrics.count_upload("created" if taken.created else "existing")
    response.status_code = 201 if taken.created else 200
    response.headers["Location"] = f"/v1/tasks/{task}/versions/{taken.entry.version}"
    response.headers["ETag"] = f'"{taken.entry.digest}"'
    response.headers[SEQ_HEADER] = str(taken.seq)
    return Uploaded(task=task, version=taken.entry.version, digest=taken.entry.digest)


@router.get("/v1/tasks", response_model=TasksResponse)
async def tasks(
    request: Request,
    runtime: RuntimeOf,
    view: ViewOf,
    after: Annotated[str, Query(max_length=MAX_REF, description="the last name of the page before")] = "",
    prefix: Annotated[str, Query(max_length=MAX_REF, description="what the names begin with")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="tasks of a page")] = MAX_PAGE,
) -> Response:
    """Lists the tasks by name, a page at a time; `next` is the `after` of the next page."""
    # Beside the event loop: a thousand tasks take milliseconds to copy and to write.
    return Answer(request, await _in_thread(runtime, _page, view, after, prefix, limit), "application/json")


@router.get("/v1/tasks/{task}", response_model=TaskResponse)
async def task(
    task: Name,
    request: Request,
    runtime: RuntimeOf,
    view: ViewOf,
    after: Annotated[int, Query(ge=0, lt=2**31, description="the last version of the page before")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="versions of a page")] = MAX_PAGE,
) -> Response:
    """Describes a task: where its aliases point, and its versions, a page at a time."""
    check_name(task)
    # Beside the event loop: a task may have had ten thousand versions.
    return Answer(request, await _in_thread(runtime, _described, view, task, after, limit), "application/json")


@router.delete("/v1/tasks/{task}", status_code=204)
async def delete_task(task: Name, response: Response, runtime: RuntimeOf, context: ContextOf) -> None:
    """Deletes a task with its aliases and versions; requests that hold one of these are still answered."""
    check_name(task)
    seq = await _in_thread(runtime, runtime.catalog.delete_task, task, context)
    response.headers[SEQ_HEADER] = str(seq)


@router.post("/v1/tasks/{task}/rename", status_code=204)
async def rename_task(
    task: Name, body: RenameRequest, response: Response, runtime: RuntimeOf, context: ContextOf
) -> None:
    """Gives a task another name, at one moment; numbers, aliases and whom requests under way were meant for stay."""
    check_name(task)
    check_name(body.name)
    seq = await _in_thread(runtime, runtime.catalog.rename_task, task, body.name, context)
    response.headers["Location"] = f"/v1/tasks/{body.name}"
    response.headers[SEQ_HEADER] = str(seq)


@router.get("/v1/tasks/{task}/versions/{version}")
async def version(
    task: Name, version: VersionNumber, response: Response, runtime: RuntimeOf, view: ViewOf
) -> VersionResponse:
    """Describes a version with its manifest."""
    check_name(task)
    found = view.version(task, version)
    manifest = await _in_thread(runtime, view.manifest, found)
    response.headers["ETag"] = f'"{found.entry.digest}"'
    return VersionResponse(task=task, manifest=manifest, **_summary(found).model_dump())


@router.get("/v1/tasks/{task}/versions/{version}/changes")
async def changes(
    task: Name,
    version: VersionNumber,
    request: Request,
    response: Response,
    runtime: RuntimeOf,
    view: ViewOf,
    context: ContextOf,
    against: Annotated[int | None, Query(ge=1, lt=2**31, description="another version of the task")] = None,
) -> ChangesResponse:
    """Says how much a version changes each part of the base, or, with `against`, beyond another version of the task."""
    check_name(task)
    asked = [view.version(task, version)] + ([] if against is None else [view.version(task, against)])
    digests = tuple(one.entry.digest for one in asked)
    # Read, so that all that comes from the client afterwards is that it leaves.
    await request.body()
    async with Patience(context, request.receive):
        found = await runtime.measured.of(digests, lambda: _in_thread(runtime, view.changes, *asked))
    symbols = runtime.base.spec.symbols
    rows = [
        ChangeResponse(
            name=one.name,
            symbol=symbols.get(one.name, one.name),
            layer=one.layer,
            kind=one.kind,
            norm=one.norm,
            rms=one.rms,
        )
        for one in found
    ]
    response.headers["ETag"] = f'"{"+".join(digests)}"'
    return ChangesResponse(task=task, version=version, digest=digests[0], against=against, changes=rows)


@router.get("/v1/tasks/{task}/versions/{version}/delta", response_class=Response, responses={200: FILE})
async def delta(task: Name, version: VersionNumber, request: Request, runtime: RuntimeOf, view: ViewOf) -> Response:
    """Downloads a version's delta file, in canonical bytes; its SHA-256 is the version's digest."""
    check_name(task)
    found = view.version(task, version)
    content = await _in_thread(runtime, view.delta, found)
    return Answer(request, content, OCTETS, headers={"ETag": f'"{found.entry.digest}"'})


@router.delete("/v1/tasks/{task}/versions/{version}", status_code=204)
async def delete_version(
    task: Name, version: VersionNumber, response: Response, runtime: RuntimeOf, context: ContextOf
) -> None:
    """Deletes a version that no alias points at; requests that hold it are still answered."""
    check_name(task)
    seq = await _in_thread(runtime, runtime.catalog.delete_version, task, version, context)
    response.headers[SEQ_HEADER] = str(seq)


@router.get("/v1/tasks/{task}/aliases/{alias}")
async def alias(task: Name, alias: AliasName, response: Response, view: ViewOf) -> AliasResponse:
    """Says where an alias points; its ETag is what `If-Match` takes."""
    check_name(task)
    return _alias_response(task, alias, view.alias(task, alias), response)


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
) -> AliasResponse:
    """Points an alias at a version if it is where `If-Match: "<version>"` says, or new with `If-None-Match: *`.

    A version that is not in memory is loaded first.
    """
    check_name(task)
    check_alias(alias)
    expected = _expected(request)
    await _in_thread(runtime, runtime.catalog.look)
    async with runtime.catalog.in_memory(task, body.version, context):
        arguments = task, alias, body.version, expected, context
        moved, seq = await _in_thread(runtime, runtime.catalog.move_alias, *arguments)
    if wait and runtime.presence is not None:
        await runtime.presence.all_at(seq, context, runtime.registrars)
    response.headers[SEQ_HEADER] = str(seq)
    return _alias_response(task, alias, moved, response)


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
    seq = await _in_thread(runtime, runtime.catalog.delete_alias, task, alias, expected, context)
    response.headers[SEQ_HEADER] = str(seq)


async def _receive(task: str, request: Request, runtime: Runtime, context: Context) -> Taken:
    """Streams the body to disk, then hands it in its turn to the uploader's thread, which owns it from there on."""
    request.state.max_body_bytes, request.state.body_deadline = runtime.settings.max_upload_bytes, math.inf
    digests = SentDigests(request.headers)
    runtime.catalog.require_upload(task, context)
    async with AsyncExitStack() as held:
        incoming = held.enter_context(runtime.receiving.admitted(context.principal.name))
        body = await _in_thread(runtime, runtime.catalog.writer)

        def take(part: bytes) -> None:
            digests.update(part)
            body.write(part)

        try:
            async for part in incoming.parts(request.stream()):
                await _in_thread(runtime, take, part)
            digests.check()
            await held.enter_async_context(runtime.receiving.turn(incoming))
        except BaseException as error:
            body.discard()
            if isinstance(error, TimeoutError):
                detail = "the upload came too slowly while others waited for its place"
                raise HTTPException(408, detail, {"Connection": "close"}) from None
            raise
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(runtime.uploader, runtime.catalog.upload, task, body, context)


def _page(view: View, after: str, prefix: str, limit: int) -> str:
    """A TasksResponse as JSON."""
    entries = view.tasks(after, limit + 1, prefix)
    more = entries[limit - 1].name if len(entries) > limit else None
    found = [TaskSummary(versions=list(entry.versions), **_aliases(entry)) for entry in entries[:limit]]
    return TasksResponse(tasks=found, next=more).model_dump_json()


def _described(view: View, task: str, after: int, limit: int) -> str:
    """A TaskResponse as JSON."""
    entry = view.task(task, after, limit + 1)
    numbers = list(entry.versions)
    more = numbers[limit - 1] if len(numbers) > limit else None
    versions = [_summary(entry.versions[number]) for number in numbers[:limit]]
    return TaskResponse(versions=versions, next=more, **_aliases(entry)).model_dump_json()


def _expected(request: Request) -> int | None:
    """The version that the caller saw, from the conditional headers; None is for an alias that is new."""
    if_match, if_none_match = request.headers.getlist("if-match"), request.headers.getlist("if-none-match")
    if not if_match and not if_none_match:
        raise HTTPException(428, 'send If-Match: "<current version>", or If-None-Match: * for a new alias')
    if not if_match and if_none_match == ["*"]:
        return None
    found = re.fullmatch(r'"([1-9][0-9]{0,9})"', if_match[0]) if len(if_match) == 1 and not if_none_match else None
    if found is None:
        raise InvalidInput('the condition must be one If-Match: "<current version>", or If-None-Match: *')
    return int(found[1])


def _alias_response(task: str, alias: str, at: Alias, response: Response) -> AliasResponse:
    response.headers["ETag"] = f'"{at.version}"'
    return AliasResponse(task=task, alias=alias, version=at.version, previous=at.previous)


def _aliases(entry: TaskEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "aliases": {name: alias.version for name, alias in entry.aliases.items()},
        "previous": {name: alias.previous for name, alias in entry.aliases.items() if alias.previous},
    }


def _summary(version: Version) -> VersionSummary:
    entry = version.entry
    facts = version.known_facts
    return VersionSummary(
        version=entry.version,
        digest=entry.digest,
        status=version.state.value,
        reason=version.reason,
        retry_in=None if version.next_try is None else max(0.0, version.next_try - time.monotonic()),
        size=entry.size,
        created_at=entry.created_at,
        method=version.method,
        task_type=facts and facts.task_type,
        labels=facts and len(facts.labels),
    )


async def _in_thread(runtime: Runtime, call: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(runtime.registrars, functools.partial(call, *arguments))
