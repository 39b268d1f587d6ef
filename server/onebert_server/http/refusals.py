"""Answers requests that the protocol could not read; nothing of them reaches the routes."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from onebert_server.http.problems import http_problem
from onebert_server.http.protocol import REFUSAL


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
