"""Authenticates each request by its key before its body is read; only a fixed list of paths needs no key."""

import hashlib
import logging
import time
from functools import lru_cache
from typing import TYPE_CHECKING

from starlette.types import Scope

from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import Principal, nobody, root
from onebert_server.fairness.rates import Attempts
from onebert_server.http.head import HEAD, Head
from onebert_server.loopback import is_loopback
from onebert_server.page import files
from onebert_store.errors import Unauthorized

if TYPE_CHECKING:
    from onebert_server.http.oidc import Tokens

logger = logging.getLogger("onebert.auth")

# Open paths: the page and the documentation, which reveal nothing about this server's tasks, and health.
DOCS_PATHS = frozenset(
    {"/docs", "/docs/start.js", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/openapi.json"}
)
PROBES = frozenset(
    {"/healthz", "/startupz", "/readyz", "/health", "/health/live", "/v2/health/live", "/v2/health/ready"}
)
# Fields with keys whose digests are remembered.
MAX_REMEMBERED = 1024
OPEN_PATHS = DOCS_PATHS | files.PATHS.keys() | PROBES


class ApiKeys:
    """Authenticates a request by its headers; `ring` has the keys."""

    def __init__(self, ring: KeyRing, tokens: "Tokens | None" = None) -> None:
        self.ring = ring
        self._tokens = tokens
        self._warned = False
        self._attempts = Attempts()
        # The SHA-256 of keys by the fields that they were sent in.
        self._digests: dict[bytes, bytes] = {}

    async def principal_of(self, head: Head, address: str) -> Principal:
        """Returns the principal of the key, or of the address on a server without keys.

        A server without keys listens on loopback only (Settings checks that) and requires a loopback Host header.
        Otherwise a web page could reach it through a browser by DNS rebinding.

        Raises:
            Unauthorized: the request has no valid key.
            TooManyAttempts: the same, from an address that is over the limit; or see `Tokens.find`.
        """
        if self.ring.is_open:
            self._check_open(head, address)
            return root(address)
        field = b"" if b"authorization" in head.repeated else head.fields.get(b"authorization", b"")
        scheme, _, key = str(field, "latin-1").partition(" ")
        # Only HTTP whitespace: `strip()` would also remove 0x85 and 0xA0, which can be the last byte of a key.
        key = key.strip(" \t") if scheme.lower() == "bearer" else ""
        digest = hashlib.sha256(key.encode("latin-1")).digest()
        if principal := self.ring.find(digest):
            if len(self._digests) >= MAX_REMEMBERED:
                self._digests.clear()
            self._digests[field] = digest
            return principal
        if self._tokens and (principal := await self._tokens.find(key, digest, address)):
            return principal
        self._attempts.count(address, time.monotonic())
        raise Unauthorized("send one valid key as 'Authorization: Bearer …'")

    def _check_open(self, head: Head, address: str) -> None:
        if not _means_loopback(head.fields.get(b"host", b"")):
            self._attempts.count(address, time.monotonic())
            raise Unauthorized("a server without API keys answers only requests addressed to loopback")
        if b"authorization" in head.fields and not self._warned:
            self._warned = True
            logger.warning("a client sends a key to a server without keys, where everybody may do everything")

    async def admit(self, scope: Scope) -> None:
        """Sets the principal of a request, which is nobody on an open path; raises Unauthorized or TooManyAttempts."""
        state, address = scope["state"], address_of(scope)
        state["principal"] = nobody(address)
        if scope["method"] == "POST" or not is_open(scope):
            state["principal"] = await self.principal_of(state[HEAD], address)

    def known(self, scope: Scope) -> Principal | None:
        """The principal of a request that needs no closer check; None for every other one.

        Its key is valid and came in the same bytes before, or this server is without keys, and it needs none.
        """
        head: Head = scope["state"][HEAD]
        if self.ring.is_open:
            plain = b"authorization" not in head.fields and _means_loopback(head.fields.get(b"host", b""))
            return root(address_of(scope)) if plain else None
        digest = self._digests.get(head.fields.get(b"authorization", b""))
        return None if digest is None or head.repeated else self.ring.find(digest)


def is_open(scope: Scope) -> bool:
    """Whether a request needs no key; a POST always needs one."""
    return scope["path"] in OPEN_PATHS and scope["method"] != "POST"


def address_of(scope: Scope) -> str:
    """The client's IP address; empty for a client without one, such as a Unix socket."""
    address, _ = scope.get("client") or ("", 0)
    return str(address)


@lru_cache(64)
def _means_loopback(field: bytes) -> bool:
    """Whether a Host header, with or without a port, names loopback."""
    host = str(field, "latin-1")
    name, colon, port = host.rpartition(":")
    return is_loopback(name if colon and port.isdigit() else host)
