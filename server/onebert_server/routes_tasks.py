"""Routes of the registry: upload, list, describe, download, delete, and aliases by compare-and-set."""

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Request, Response
from starlette.exceptions import HTTPException

from onebert_server.directory import Entry, Resident, TaskEntry
from onebert_server.routing import PROBLEMS, Parts, PartsOf, StrictRoute, require_media_type
from onebert_server.schemas import (
    AliasRequest,
    AliasResponse,
    TaskResponse,
    TasksResponse,
    TaskSummary,
    Uploaded,
    VersionResponse,
    VersionSummary,
)
from onebert_store.errors import AliasNotFound, InvalidInput, OneBertError
from onebert_store.names import check_name
from onebert_store.registry import Alias, VersionRecord
from onebert_store.strict_json import shown

T = TypeVar("T")

router = APIRouter(route_class=StrictRoute, responses=PROBLEMS, tags=["tasks"])

Version = Annotated[int, Path(ge=1, lt=2**31)]
OCTETS = "application/octet-stream"
UPLOAD_BODY = {
    "requestBody": {"required": True, "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}}}
}


@router.put(
    "/v1/tasks/{task}/versions", status_code=201, responses={200: {"model": Uploaded}}, openapi_extra=UPLOAD_BODY
)
async def upload(task: str, request: Request, response: Response, parts: PartsOf) -> Uploaded:
    """Takes a delta file as the next version of a task; 200 where the task has the content already.

    The file is checked, folded and held against its golden logits before it is stored; a first version is live.
    """
    check_name(task)
    require_media_type(request, OCTETS)
    try:
        record, created = await _receive(task, request, parts)
    except (OneBertError, HTTPException) as error:
        parts.metrics.count_upload(error.code if isinstance(error, OneBertError) else str(error.status_code))
        raise
    parts.metrics.count_upload("created" if created else "existing")
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/tasks/{task}/versions/{record.version}"
    response.headers["ETag"] = f'"{record.digest}"'
    return Uploaded(task=task, version=record.version, digest=record.digest)


@router.get("/v1/tasks")
async def tasks(parts: PartsOf) -> TasksResponse:
    """Lists every task."""
    entries = parts.directory.tasks()
    return TasksResponse(tasks=[TaskSummary(versions=list(entry.versions), **_aliases(entry)) for entry in entries])


@router.get("/v1/tasks/{task}")
async def task(task: str, parts: PartsOf) -> TaskResponse:
    """Describes a task: where its aliases point, and its versions."""
    check_name(task)
    entry = parts.directory.task(task)
    versions = [_summary(version) for version in entry.versions.values()]
    return TaskResponse(versions=versions, **_aliases(entry))


@router.get("/v1/tasks/{task}/versions/{version}")
async def version(task: str, version: Version, response: Response, parts: PartsOf) -> VersionResponse:
    """Describes a version with its manifest."""
    check_name(task)
    entry = parts.directory.version(task, version)
    response.headers["ETag"] = f'"{entry.record.digest}"'
    return VersionResponse(task=task, manifest=entry.record.manifest, **_summary(entry).model_dump())


@router.get("/v1/tasks/{task}/versions/{version}/delta", response_class=Response)
async def delta(task: str, version: Version, parts: PartsOf) -> Response:
    """Downloads a version's delta file, in canonical bytes; its SHA-256 is the version's digest."""
    check_name(task)
    record = parts.directory.version(task, version).record
    content = await _in_thread(parts, parts.catalog.read_delta, record)
    return Response(content, media_type=OCTETS, headers={"ETag": f'"{record.digest}"'})


@router.delete("/v1/tasks/{task}/versions/{version}", status_code=204)
async def delete_version(task: str, version: Version, parts: PartsOf) -> None:
    """Deletes a version that no alias points at; requests that hold it are still answered."""
    check_name(task)
    await _in_thread(parts, parts.catalog.delete_version, task, version)


@router.get("/v1/tasks/{task}/aliases/{alias}")
async def alias(task: str, alias: str, response: Response, parts: PartsOf) -> AliasResponse:
    """Says where an alias points; its ETag is what `If-Match` takes."""
    check_name(task)
    at = parts.directory.task(task).aliases.get(alias)
    if at is None:
        raise AliasNotFound(f"{task} has no alias {shown(alias)}")
    return _alias_response(task, alias, at, response)


@router.put("/v1/tasks/{task}/aliases/{alias}")
async def move_alias(
    task: str, alias: str, body: AliasRequest, request: Request, response: Response, parts: PartsOf
) -> AliasResponse:
    """Points an alias at a version if it is where `If-Match: "<version>"` says, or new with `If-None-Match: *`."""
    expected = _expected(request)
    moved = await _in_thread(parts, parts.catalog.move_alias, task, alias, body.version, expected)
    return _alias_response(task, alias, moved, response)


@router.delete("/v1/tasks/{task}/aliases/{alias}", status_code=204)
async def delete_alias(task: str, alias: str, request: Request, parts: PartsOf) -> None:
    """Deletes an alias if it is where `If-Match: "<version>"` says; its version stays."""
    expected = _expected(request)
    if expected is None:
        raise InvalidInput('an alias is deleted with If-Match: "<current version>"')
    await _in_thread(parts, parts.catalog.delete_alias, task, alias, expected)


async def _receive(task: str, request: Request, parts: Parts) -> tuple[VersionRecord, bool]:
    """Streams the body to disk, then hands it to the uploader's thread, which owns the staged file from there on."""
    request.state.max_body_bytes = parts.settings.max_upload_bytes
    async with parts.receiving:
        staged = await _in_thread(parts, parts.registry.stage)
        try:
            async for chunk in request.stream():
                await _in_thread(parts, staged.write, chunk)
        except BaseException:
            staged.discard()
            raise
    return await asyncio.get_running_loop().run_in_executor(parts.uploader, parts.catalog.upload, task, staged)


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
    return AliasResponse(task=task, alias=alias, **vars(at))


def _aliases(entry: TaskEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "aliases": {name: alias.version for name, alias in entry.aliases.items()},
        "previous": {name: alias.previous for name, alias in entry.aliases.items() if alias.previous},
    }


def _summary(entry: Entry) -> VersionSummary:
    record = entry.record
    return VersionSummary(
        version=record.version,
        digest=record.digest,
        status="ready" if isinstance(entry, Resident) else "unavailable",
        size=record.size,
        created_at=record.created_at,
        method=record.manifest.method,
        task_type=record.manifest.task_type,
        labels=len(record.manifest.labels),
    )


async def _in_thread(parts: Parts, call: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(parts.registrars, functools.partial(call, *arguments))
