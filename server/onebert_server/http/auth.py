"""Who asks: every path needs a key but an exact list; checked before a byte of the body is read."""

import hashlib
import logging
import time
from collections import OrderedDict
from functools import lru_cache
from typing import Protocol

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import Principal, nobody, root
from onebert_server.http.problems import problem_response
from onebert_server.page import files
from onebert_server.settings import is_loopback
from onebert_store.errors import OneBertError, TooManyAttempts, Unauthorized

logger = logging.getLogger("onebert.auth")

# Paths without a key: the page and the documentation, which say nothing about the tasks of this server, and health.
DOCS_PATHS = frozenset(
    {"/docs", "/docs/start.js", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/openapi.json"}
)
PROBES = frozenset(
    {"/healthz", "/startupz", "/readyz", "/health", "/health/live", "/v2/health/live", "/v2/health/ready"}
)
OPEN_PATHS = DOCS_PATHS | files.PATHS.keys() | PROBES


UNAUTHORIZED = "unauthorized"
"""The key under which a request's state has the error of a key that `ApiKeys.let_through` has checked."""


class TokensOf(Protocol):
    """Knows bearer tokens that are no keys."""

    async def find(self, token: str, digest: bytes) -> Principal | None:
        """Whose a token is; None where it is nobody's, or no longer.

        Args:
            token: as it was sent.
            digest: its SHA-256.
        """


class ApiKeys:
    """Tells from a request's head who asks."""

    def __init__(self, ring: KeyRing, tokens: TokensOf | None = None) -> None:
        self._ring = ring
        self._tokens = tokens
        self._warned = False

    async def check(self, headers: Headers, address: str) -> Principal:
        """Lets a request through or not.

        Without keys the server listens on loopback only (Settings sees to that); the Host must then be a loopback name,
        or a web page could reach the server through a browser by rebinding its own name.

        Args:
            headers: of the request.
            address: of the client.

        Returns:
            Who asks, by key or, without keys, by address.

        Raises:
            Unauthorized: no key, several, or a wrong one.
        """
        if self._ring.is_open:
            if not _means_loopback(headers.get("host", "")):
                raise Unauthorized("a server without API keys answers only requests addressed to loopback")
            if "authorization" in headers and not self._warned:
                self._warned = True
                logger.warning("a client sends a key to a server without keys, where everybody may do everything")
            return root(address)
        given = headers.getlist("authorization")
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        # HTTP's whitespace alone: `strip()` would take off 0x85 and 0xA0, too, which may be the last byte of a key.
        key = key.strip(" \t")
        digest = hashlib.sha256(key.encode("latin-1")).digest()
        principal = self._ring.find(digest)
        if principal is None and self._tokens is not None:
            principal = await self._tokens.find(key, digest)
        if scheme.lower() != "bearer" or principal is None:
            raise Unauthorized("send one valid key as 'Authorization: Bearer …'")
        return principal

    async def let_through(self, scope: Scope) -> Principal | None:
        """Who asks, where KeyMiddleware passes the request on: it has a key, or needs none; else None."""
        if is_open(scope):
            return nobody(address_of(scope))
        try:
            return await self.check(Headers(scope=scope), address_of(scope))
        except Unauthorized as error:
            scope["state"][UNAUTHORIZED] = error
            return None


class Attempts:
    """Counts requests without a valid key by address: `AT_ONCE` of them, and `A_SECOND` more in a second.

    What comes beyond is refused otherwise and its connection closed. A valid key is never refused: whoever shares an
    address, or a proxy, with somebody who guesses must not be locked out, and no guess finds a key of 128 bits.
    """

    AT_ONCE, A_SECOND = 100, 10
    ADDRESSES = 4096

    def __init__(self) -> None:
        # Address -> attempts that count, and when that was; the address that came last is the last.
        self._counted: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count(self, address: str, now: float) -> None:
        """Counts one.

        Raises:
            TooManyAttempts: with the seconds after which the next one is counted again.
        """
        before, since = self._counted.pop(address, (0.0, now))
        attempts = max(before - (now - since) * self.A_SECOND, 0.0)
        many = attempts + 1 > self.AT_ONCE
        self._counted[address] = (attempts if many else attempts + 1, now)
        if len(self._counted) > self.ADDRESSES:
            self._counted.popitem(last=False)
        if many:
            raise TooManyAttempts("too many requests without a valid key came from this address", 1)


class KeyMiddleware:
    """Refuses every request without a key, routed or not, except the open paths; says who asks."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self.app = app
        self.keys = keys
        self.attempts = Attempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401, or passes the request on."""
        if scope["type"] == "http":
            scope["state"]["principal"] = nobody(address_of(scope))
        if scope["type"] == "http" and not is_open(scope):
            try:
                if (known := scope["state"].get(UNAUTHORIZED)) is not None:
                    raise known
                scope["state"]["principal"] = await self.keys.check(Headers(scope=scope), address_of(scope))
            except OneBertError as error:
                await self._refuse(scope, error)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refuse(self, scope: Scope, error: OneBertError) -> JSONResponse:
        try:
            self.attempts.count(address_of(scope), time.monotonic())
        except TooManyAttempts as more:
            response = problem_response(scope, more)
            response.headers["Connection"] = "close"
            return response
        return problem_response(scope, error)


def is_open(scope: Scope) -> bool:
    """Whether a request needs no key; one that asks a question does, wherever it is sent."""
    return scope["path"] in OPEN_PATHS and scope["method"] != "POST"


def address_of(scope: Scope) -> str:
    """The client's address; empty where it has none, as behind a Unix socket."""
    address, _ = scope.get("client") or ("", 0)
    return str(address)


@lru_cache(64)
def _means_loopback(host: str) -> bool:
    """Whether a Host header, with its port or without, names this machine alone."""
    name, colon, port = host.rpartition(":")
    return is_loopback(name if colon and port.isdigit() else host)
