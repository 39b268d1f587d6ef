"""What front ends and replicas on a cluster say to each other beside questions: setups, keys and whole requests."""

import asyncio
import hashlib
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Scope

from onebert_server.access.keys import KeyRing
from onebert_server.front_ends import wire

encode = wire.encode


class Setup(msgspec.Struct, frozen=True, array_like=True):
    """What a front end has to know of the base.

    Attributes:
        tokenizer: of `Tokenizer.dumps`.
        max_length: tokens of the longest sequence that the base takes.
    """

    tokenizer: str
    max_length: int


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A request for the app of a replica, whole; `scope` is what of its ASGI scope goes over the wire."""

    scope: dict[str, Any]
    body: bytes


class Answer(msgspec.Struct, frozen=True, array_like=True):
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
            self._of, self._encoded = now, encode(wire.keys(self._ring))
            self._digest = hashlib.sha256(self._encoded).digest()
        return b"" if digest == self._digest else self._encoded


async def answer(app: ASGIApp, request: Request) -> Answer:
    """Has an app answer a request, to its end: a client that leaves meanwhile is known to the front end alone."""
    parts: list[bytes] = []
    status, headers, given = 0, [], False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.get_running_loop().create_future()
        given = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], [*message["headers"]]
        else:
            parts.append(message.get("body", b""))

    scope: Scope = {**request.scope, "headers": [(name, value) for name, value in request.scope["headers"]]}
    await app(scope, receive, send)
    return Answer(status, headers, b"".join(parts))
