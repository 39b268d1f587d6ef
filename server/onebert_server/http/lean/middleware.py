"""Answers plain questions in front of FastAPI, without its layers.

The middleware around it sets the request's id, principal, deadline and body limits, so that both paths share that code.
The request's head alone decides the path, before the body is read, so no request starts on one path and moves.
"""

from functools import partial

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from onebert_server.edge import Edge
from onebert_server.http.lean.formats import Formats, Found
from onebert_server.http.lean.route import timed
from onebert_server.http.middleware import BODIES
from onebert_server.http.patience import Patience, in_its_time
from onebert_server.http.problems import problem_of
from onebert_server.http.strict import MAX_BYTES_ON_LOOP, PIECE_BYTES, Answer, whole_body

# A request with one of these fields is not plain.
UNUSUAL = frozenset((b"content-encoding", b"transfer-encoding", b"content-digest", b"digest"))


class LeanMiddleware:
    """Answers plain questions in its formats and passes every other request on.

    A plain question is a POST with one of the format's media types, a declared length of at most `MAX_BYTES_ON_LOOP`,
    no content encoding and no digest.
    """

    def __init__(self, app: ASGIApp, edge: Edge, formats: Formats) -> None:
        self.app = app
        self.edge = edge
        self.formats = formats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.formats.asked(scope)
        if found is None or not _is_plain(scope, found.format.accepts):
            await self.app(scope, receive, send)
            return
        scope["route"] = found.format
        try:
            await self._answer(found, scope, receive, send)
        except Exception as error:
            # Both paths map errors with the same function; unexpected exceptions propagate.
            problem = problem_of(scope, error)
            if problem is None:
                raise
            await problem(scope, receive, send)

    async def _answer(self, found: Found, scope: Scope, receive: Receive, send: Send) -> None:
        form, context = found.format, scope["state"]["context"]
        # First, so that a refusal under overload is cheap.
        self.edge.answerer.check(context)
        content = await whole_body(scope, receive, scope["state"][BODIES])
        body = timed(partial(form.read, scope=scope), context, content)
        context = in_its_time(context, body)
        async with Patience(context, receive):
            content, extra, media_type = await form.reply(found.parameters, body, context, self.edge)
        if len(content) > PIECE_BYTES:
            await Answer(Request(scope), content, media_type or form.media_type, extra)(scope, receive, send)
            return
        headers = [
            (b"content-length", b"%d" % len(content)),
            (b"content-type", media_type.encode() if media_type else form.content_type),
        ]
        for name, value in extra.items():
            headers.append((name.encode(), value.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _is_plain(scope: Scope, media_types: frozenset[str]) -> bool:
    types, given, length = 0, "", b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            types += 1
            given = value.decode("latin-1")
        elif name == b"content-length":
            length = value
        elif name in UNUSUAL:
            return False
    return (
        types <= 1
        and given in media_types
        and len(length) < 10
        and length.isdigit()
        and int(length) <= MAX_BYTES_ON_LOOP
    )
