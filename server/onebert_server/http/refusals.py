"""What is answered in place of a request that the protocol cannot read, and how the app hears of it.

A stand-in takes the place of such a request; nothing of it reaches the routes. Where only the body cannot be read, the
app has the request already, and is told in place of the body's next part.
"""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from onebert_server.http.problems import http_problem

# Bytes of a request's target and header lines together, and the number of these lines.
MAX_HEAD_BYTES = 2**15
MAX_HEADER_LINES = 100
# Requests of one connection that may wait behind the one that is being answered.
MAX_PIPELINED = 16

Refusal = tuple[int, str]
"""Status and detail of the problem that answers a request which cannot be read."""

REFUSAL = "refusal"
"""The key under which a stand-in's state, and a message in place of a body's next part, hold a Refusal."""

WHOLE = "whole"
"""The key under which a request's state says that its body had come whole before the app was asked."""

MALFORMED = (400, "this is not HTTP/1.1")
TOO_LARGE = (431, f"a request has at most {MAX_HEAD_BYTES} bytes of header fields, in {MAX_HEADER_LINES} lines")
TOO_SLOW = (408, "the header fields did not come in time")
TOO_MANY = (503, "as many connections are open as the server takes")
TOO_DEEP = (503, f"at most {MAX_PIPELINED} requests of a connection wait behind the one that is being answered")
UNCLEAR = (
    400,
    "a request is HTTP/1.1 or 1.0, has one Host that fits its target, and says once where its body ends: by a plain "
    "Content-Length, or by Transfer-Encoding: chunked",
)


class RefusalMiddleware:
    """Answers the protocol's stand-ins, and passes everything else on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with the problem in the request's state, or passes the request on."""
        if scope["type"] != "http" or REFUSAL not in scope["state"]:
            await self.app(scope, receive, send)
            return
        status, detail = scope["state"][REFUSAL]
        headers = {"Connection": "close"} | ({"Retry-After": "1"} if status == 503 else {})
        await http_problem(scope, HTTPException(status, detail, headers))(scope, receive, send)
