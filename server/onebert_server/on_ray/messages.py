"""Messages between front ends and replicas on a cluster, besides questions: keys and whole requests."""

import asyncio
import hashlib
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Scope

from onebert_server.access.keys import KeyRing
from onebert_server.front_ends import wire


class Answer(NamedTuple):
    """A whole HTTP response of a replica's app."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Keys:
    """A replica's keys as encoded `wire.Keys`; encodes again only after a change."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._of: Any = None
        self._encoded = self._digest = b""

    def unless(self, digest: bytes) -> bytes:
        """Returns the encoded keys, or empty bytes if their SHA-256 equals `digest`."""
        now = self._ring.registered, self._ring.is_open
        # Comparing by identity is enough, since a ring replaces its table and never mutates it.
        if self._of is None or self._of[0] is not now[0] or self._of[1] != now[1]:
            self._of, self._encoded = now, wire.encode(wire.keys(self._ring))
            self._digest = hashlib.sha256(self._encoded).digest()
        return b"" if digest == self._digest else self._encoded


async def answer(app: ASGIApp, scope: Scope, body: bytes) -> Answer:
    """Runs the app on one request to the end; only the front end knows whether the client has left."""
    parts: list[bytes] = []
    status, headers, given = 0, [], False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.get_running_loop().create_future()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], [*message["headers"]]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(status, headers, b"".join(parts))
