"""Serves the files of the page at `/`, with 304 for cached ones."""

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from onebert_server.page import files

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/page/{path:path}", methods=["GET", "HEAD"])
async def file(request: Request) -> Response:
    """One file; 304 where the browser has it already."""
    path: str = request.scope["path"]
    if path not in files.PATHS:
        raise HTTPException(404)
    content, media_type, etag = files.read(path)
    headers = files.HEADERS | {"ETag": etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)
