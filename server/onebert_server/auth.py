"""API keys: every path needs one but an exact list; checked before a byte of the body is read."""

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from onebert_server.problems import problem_response
from onebert_server.settings import is_loopback
from onebert_store.errors import OneBertError, Unauthorized

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})


class ApiKeys:
    """The keys of a server, as SHA-256 digests."""

    def __init__(self, digests: Iterable[bytes]) -> None:
        self._digests = tuple(digests)

    def check(self, headers: Headers) -> None:
        """Lets a request through or not.

        Without keys the server listens on loopback only (Settings sees to that); the Host must then be a loopback name,
        or a web page could reach the server through a browser by rebinding its own name.

        Raises:
            Unauthorized: no key, several, or a wrong one.
        """
        if not self._digests:
            if not is_loopback(_host_name(headers.get("host", ""))):
                raise Unauthorized("a server without API keys answers only requests addressed to loopback")
            return
        given = headers.getlist("authorization")
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        digest = hashlib.sha256(key.strip().encode("latin-1")).digest()
        # All keys are compared, whichever matches: the time says nothing about them.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise Unauthorized("send one valid key as 'Authorization: Bearer …'")


class KeyMiddleware:
    """Refuses every request without a key, routed or not, except the open paths."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401, or passes the request on."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self.keys.check(Headers(scope=scope))
            except OneBertError as error:
                await problem_response(scope, error)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _host_name(header: str) -> str:
    """The Host header without its port; brackets of IPv6 stay."""
    name, colon, port = header.rpartition(":")
    return name if colon and port.isdigit() else header
