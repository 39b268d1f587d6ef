"""What front ends and replicas on a cluster say to each other beside questions: keys and whole requests."""

import asyncio
import hashlib
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Scope

from onebert_server.access.keys import KeyRing
from onebert_server.front_ends import wire


class Answer(NamedTuple):
    """The answer of a replica's app, whole."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Keys:
    """The keys of a replica's ring as `wire.Keys`, encoded anew only where they have changed."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._of: Any = None
        self._encoded = self._digest = b""

    def unless(self, digest: bytes) -> bytes:
        """The encoded keys; nothing where their SHA-256 is this one."""
        now = self._ring.registered, self._ring.is_open
        # A ring exchanges its table and never changes it.
        if self._of is None or self._of[0] is not now[0] or self._of[1] != now[1]:
            self._of, self._encoded = now, wire.encode(wire.keys(self._ring))
            self._digest = hashlib.sha256(self._encoded).digest()
        return b"" if digest == self._digest else self._encoded


async def answer(app: ASGIApp, scope: Scope, body: bytes) -> Answer:
    """Has an app answer a request, to its end: a client that leaves meanwhile is known to the front end alone."""
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
