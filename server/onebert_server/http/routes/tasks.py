"""Routes of tasks and their versions: upload, list, describe, download, delete."""

import logging
import math
import time
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query, Request, Response
from msgspec.structs import asdict
from starlette.exceptions import HTTPException

from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.contract.tasks import TaskResponse, TasksResponse, TaskSummary, Uploaded, VersionSummary
from onebert_server.http.body import BODY, Body, SentDigests
from onebert_server.http.head import HEAD
from onebert_server.http.pipeline import SEQ_HEADER
from onebert_server.http.routes.registry import Name, header, registry_router
from onebert_server.http.routes.runtime_of import RuntimeOf, ViewOf, in_thread
from onebert_server.http.schemas.tasks import (
    VersionResponse,
    rollout_of,
)
from onebert_server.http.strict import Answer, BecauseOf, ContextOf, require_media_type
from onebert_server.limits import MAX_REF
from onebert_server.runtime import Runtime
from onebert_server.versions.catalog import UploadResult
from onebert_server.versions.version import TaskEntry, Version
from onebert_server.versions.view import View
from onebert_store.errors import OneBertError

logger = logging.getLogger("onebert.http")
router = registry_router()

VersionNumber = Annotated[int, Path(ge=1, lt=2**31)]
# Tasks on one page of the list.
MAX_PAGE = 1000
OCTETS = "application/octet-stream"


FILE = {"content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}}}
UPLOAD = {
    "requestBody": {"required": True, **FILE},
    "parameters": [header("Content-Digest", "^sha-(256|512)=:.+:$", "What the body must hash to (RFC 9530).")],
}


@router.put("/v1/tasks/{task}/versions", status_code=201, responses={200: {"model": Uploaded}}, openapi_extra=UPLOAD)
async def upload(
    task: Name,
    request: Request,
    response: Response,
    runtime: RuntimeOf,
    context: ContextOf,
    live: Annotated[bool, Query(description="whether a first version is live; default: true")] = True,
) -> Uploaded:
    """Takes a delta file as the next version of a task; 200 if the task has the content already.

    The server checks the file, folds it and compares its golden logits before it stores it; a first version is live.
    """
    require_media_type(request.scope, OCTETS)
    try:
        taken = await _receive(task, request, runtime, context, live)
    except (OneBertError, HTTPException) as error:
        status = error.status if isinstance(error, OneBertError) else error.status_code
        runtime.metrics.count_upload(error.code if isinstance(error, OneBertError) else str(status))
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.warning("an upload for %s is refused: %s", task, error.detail)
        raise
    runtime.metrics.count_upload("created" if taken.created else "existing")
    show_upload(response, task, taken)
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
    """Lists the tasks by name, in pages; `next` is the next page's `after`, null on the last page."""
    # In a thread: a thousand tasks take milliseconds to copy and encode.
    return Answer(request, await in_thread(runtime, _page, view, after, prefix, limit), "application/json")


@router.get("/v1/tasks/{task}", response_model=TaskResponse)
async def task(
    task: Name,
    request: Request,
    runtime: RuntimeOf,
    view: ViewOf,
    after: Annotated[int, Query(ge=0, lt=2**31, description="the last version of the page before")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="versions of a page")] = MAX_PAGE,
) -> Response:
    """Describes a task: its aliases, and its versions in pages; `next` is as in the list of tasks."""
    # In a thread: a task may have ten thousand versions.
    return Answer(request, await in_thread(runtime, _described, view, task, after, limit), "application/json")


@router.delete("/v1/tasks/{task}", status_code=204)
async def delete_task(task: Name, response: Response, runtime: RuntimeOf, context: BecauseOf) -> None:
    """Deletes a task with all its aliases and versions at one moment; running requests are still answered."""
    seq = await in_thread(runtime, runtime.catalog.delete_task, task, context)
    response.headers[SEQ_HEADER] = str(seq)


@router.get("/v1/tasks/{task}/versions/{version}")
async def version(
    task: Name, version: VersionNumber, response: Response, runtime: RuntimeOf, view: ViewOf
) -> VersionResponse:
    """Describes a version with its manifest; `ETag` is its digest."""
    registered = view.version(task, version)
    manifest = await in_thread(runtime, view.manifest, registered)
    response.headers["ETag"] = f'"{registered.entry.digest}"'
    return VersionResponse(task=task, manifest=manifest, **asdict(_summary(registered)))


@router.get("/v1/tasks/{task}/versions/{version}/delta", response_class=Response, responses={200: FILE})
async def delta(task: Name, version: VersionNumber, request: Request, runtime: RuntimeOf, view: ViewOf) -> Response:
    """Downloads a version's delta file, in canonical bytes; its SHA-256 is the version's digest."""
    registered = view.version(task, version)
    content = await in_thread(runtime, view.delta, registered, pool=runtime.readers)
    return Answer(request, content, OCTETS, headers={"ETag": f'"{registered.entry.digest}"'})


@router.delete("/v1/tasks/{task}/versions/{version}", status_code=204)
async def delete_version(
    task: Name, version: VersionNumber, response: Response, runtime: RuntimeOf, context: BecauseOf
) -> None:
    """Deletes a version that no alias points at (else 409). Its number is never used again.

    One that is only an alias's `previous` may go. Requests that hold it are still answered.
    """
    seq = await in_thread(runtime, runtime.catalog.delete_version, task, version, context)
    response.headers[SEQ_HEADER] = str(seq)


def show_upload(response: Response, task: str, taken: UploadResult) -> None:
    """Sets the status and the header fields of a response to an upload."""
    response.status_code = 201 if taken.created else 200
    response.headers["Location"] = f"/v1/tasks/{task}/versions/{taken.entry.version}"
    response.headers["ETag"] = f'"{taken.entry.digest}"'
    response.headers[SEQ_HEADER] = str(taken.seq)


async def _receive(task: str, request: Request, runtime: Runtime, context: Context, live: bool) -> UploadResult:
    """Streams the body to disk, then passes it on to the uploader's thread, which owns it from then on."""
    arriving: Body = request.scope["state"][BODY]
    arriving.most, arriving.deadline = runtime.settings.max_upload_bytes, math.inf
    digests = SentDigests(request.scope["state"][HEAD])
    # Before the upload takes a place or sends its body.
    context.principal.require(Action.UPLOAD, task)
    async with AsyncExitStack() as stack:
        incoming = stack.enter_context(runtime.receiving.admitted(context.principal.name))
        body = await in_thread(runtime, runtime.registry.writer)

        def take(part: bytes) -> None:
            digests.update(part)
            body.write(part)

        try:
            async for part in incoming.parts(request.stream()):
                await in_thread(runtime, take, part)
            digests.compare()
            await stack.enter_async_context(runtime.receiving.place(incoming))
        except BaseException as error:
            body.discard()
            if isinstance(error, TimeoutError):
                detail = "the upload came too slowly while others waited for its place"
                raise HTTPException(408, detail, {"Connection": "close"}) from None
            raise
        return await in_thread(runtime, runtime.catalog.upload, task, body, context, live, pool=runtime.uploader)


def _page(view: View, after: str, prefix: str, limit: int) -> bytes:
    entries = view.tasks(after, limit + 1, prefix)
    next_name = entries[limit - 1].name if len(entries) > limit else None
    tasks = [
        TaskSummary(versions=list(entry.versions), digests=_digests(entry), **_aliases(view, entry))
        for entry in entries[:limit]
    ]
    return msgspec.json.encode(TasksResponse(tasks=tasks, next=next_name))


def _digests(entry: TaskEntry) -> dict[str, str]:
    meant = {number for alias in entry.aliases.values() for number in alias.target.numbers}
    versions = entry.versions.items()
    return {str(number): version.entry.digest for number, version in versions if number in meant or not meant}


def _described(view: View, task: str, after: int, limit: int) -> bytes:
    entry = view.task(task, after, limit + 1)
    numbers = list(entry.versions)
    next_number = numbers[limit - 1] if len(numbers) > limit else None
    versions = [_summary(entry.versions[number]) for number in numbers[:limit]]
    return msgspec.json.encode(TaskResponse(versions=versions, next=next_number, **_aliases(view, entry)))


def _aliases(view: View, entry: TaskEntry) -> dict[str, Any]:
    targets = {name: facts for name, alias in entry.aliases.items() if (facts := rollout_of(alias.target))}
    return {
        "name": entry.name,
        "aliases": {name: alias.version for name, alias in entry.aliases.items()},
        "previous": {name: at.version for name, alias in entry.aliases.items() if (at := view.back(entry.name, alias))},
        "targets": targets,
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
        task_type=facts.task_type if facts else None,
        labels=len(facts.labels) if facts else None,
    )
