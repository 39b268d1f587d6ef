"""In front of FastAPI: plain questions go from their bytes to the bytes of their answers here, without its layers.

It stands inside of what gives a request its id, its principal, its deadline and the limits of its body, so that all of
these hold on both paths by being the same code. Which path a request takes is decided by its head alone, before its
body is read: nothing is ever begun here and done again behind.
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

# Fields that say how a body is encoded, or what it must hash to.
UNUSUAL = frozenset((b"content-encoding", b"transfer-encoding", b"content-digest", b"digest"))


class LeanMiddleware:
    """Answers plain questions of its formats, and passes everything else on.

    Plain is a POST whose one Content-Type is one of the format's to the letter, and whose body has a declared length
    that the event loop may read by itself, is not encoded, and has no digest.
    """

    def __init__(self, app: ASGIApp, edge: Edge, formats: Formats) -> None:
        self.app = app
        self.edge = edge
        self.formats = formats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or passes the request on."""
        found = self.formats.asked(scope)
        if found is None or not _is_plain(scope, found.format.accepts):
            await self.app(scope, receive, send)
            return
        scope["route"] = found.format
        try:
            await self._answer(found, scope, receive, send)
        except Exception as error:
            # The same functions word an error on both paths; what nobody foresaw goes further up.
            problem = problem_of(scope, error)
            if problem is None:
                raise
            await problem(scope, receive, send)

    async def _answer(self, found: Found, scope: Scope, receive: Receive, send: Send) -> None:
        form, context = found.format, scope["state"]["context"]
        # First, since under overload a refusal should cost as little as it can.
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
