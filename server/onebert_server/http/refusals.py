"""What is answered in place of a request that the protocol cannot read, and how the app hears of it.

A stand-in takes the place of such a request; nothing of it reaches the routes. Where only the body cannot be read, the
app has the request already, and is told in place of the body's next part.
"""

import re
from collections.abc import Sequence

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

# Fields that say where a body ends.
FRAMING = (b"content-length", b"transfer-encoding")
# Fields that come once, in these forms alone, with the rule. A proxy that reads another form, such as `018`, in its own
# way would take a part of the body for the next request, or the other way round.
_FORMS = {
    b"host": (re.compile(rb"[\w.~%!$&'()*+;=:\[\]-]*", re.ASCII), "Host must come once, with a name or an address"),
    b"content-length": (re.compile(rb"0|[1-9][0-9]{0,17}"), "Content-Length must come once, with a plain number"),
    b"transfer-encoding": (re.compile(rb"chunked", re.IGNORECASE), "Transfer-Encoding must come once, and be chunked"),
}
_TARGET = re.compile(rb"(?:https?://([^/?#@]+))?/[^#]*|\*", re.IGNORECASE)


def unclear(version: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Refusal | None:
    """The refusal of a head in which two readers may find different hosts or ends of the body; None for a clear one.

    Args:
        version: of HTTP, such as `1.1`.
        target: of the request.
        headers: its fields, their names in lower case.
    """
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        form, rule = _FORMS.get(name, (None, ""))
        if form is not None:
            if name in found or not form.fullmatch(value):
                return 400, rule
            found[name] = value
    aimed, host = _TARGET.fullmatch(target), found.get(b"host")
    # The parser refuses a head with both fields of FRAMING.
    for kept, rule in (
        (version in ("1.1", "1.0"), "a request must be HTTP/1.1 or 1.0"),
        (aimed, "the target must be a path, or an http address with one"),
        (host is not None or version == "1.0", "a request of HTTP/1.1 must have a Host"),
        (aimed is None or aimed[1] in (None, host), "Host must be the host of the target"),
        (version == "1.1" or b"transfer-encoding" not in found, "HTTP/1.0 has no Transfer-Encoding"),
    ):
        if not kept:
            return 400, rule
    return None


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
