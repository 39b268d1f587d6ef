"""A request's body: within its limits of bytes and time, inflated, and compared with the digests that came with it."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from onebert_server.access.context import Context
from onebert_server.fairness.shares import Permits
from onebert_server.http.connection.refusals import REFUSAL
from onebert_server.http.head import ARRIVED, HEAD, Head
from onebert_server.limits import MAX_COMING_BYTES
from onebert_store.errors import DigestMismatch, InvalidInput

# Supported algorithms by their names in the header fields; RFC 9530 says to ignore the others.
ALGORITHMS = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}


class SentDigests:
    """The digests in a request's headers; `update` takes the body's parts."""

    def __init__(self, head: Head) -> None:
        self._expected = [
            expected
            for field, ends in (("content-digest", ":"), ("digest", ""))
            for expected in _parse(head.all(field.encode()), ends).items()
        ]
        # One hasher per algorithm, even if both headers name it, since hashing is the expensive part.
        self._hashers = {algorithm: ALGORITHMS[algorithm]() for algorithm, _ in self._expected}

    def update(self, part: bytes) -> None:
        """Hashes the next part of the body; call it in a thread if the part is large."""
        for hasher in self._hashers.values():
            hasher.update(part)

    def compare(self) -> None:
        """Compares the digests after the last part; raises DigestMismatch if one differs."""
        digests = {algorithm: hasher.digest() for algorithm, hasher in self._hashers.items()}
        if not all(hmac.compare_digest(digests[algorithm], digest) for algorithm, digest in self._expected):
            raise DigestMismatch("the body is not the one whose digest was sent; it was changed on its way, or cut")


def _parse(fields: Sequence[str], ends: str) -> dict[str, bytes]:
    digests: dict[str, bytes] = {}
    for member in ",".join(fields).split(","):
        name, _, value = member.strip().partition("=")
        algorithm = name.lower()
        if algorithm not in ALGORITHMS:
            continue
        if algorithm in digests:
            raise InvalidInput(f"there is more than one digest by {algorithm}")
        try:
            if not (value.startswith(ends) and value.endswith(ends)):
                raise ValueError
            digests[algorithm] = base64.b64decode(value[len(ends) : len(value) - len(ends)], validate=True)
        except (ValueError, binascii.Error):
            raise InvalidInput(f"the digest by {algorithm} is not {ends}base64{ends}") from None
    return digests


T = TypeVar("T")

# Seconds within which a body must arrive, else 408; only an upload may take longer than the request's own time.
RECEIVE_TIMEOUT = 60.0
# Maximum bytes of a body that the event loop decodes itself: under a millisecond.
MAX_BYTES_ON_LOOP = 2**15
# Bytes to inflate per turn of the event loop, which takes a fraction of a millisecond.
PIECE_BYTES = 2**16
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
# A number with more digits is no length of a body that anybody takes.
_LENGTH_DIGITS = 19

BODY = "body"
"""Request state key: the request's Body."""


class Bodies:
    """Limits of all bodies in one of so many `processes`; `timeout`: seconds from the first read to the end of one."""

    def __init__(self, max_bytes: int, timeout: float = RECEIVE_TIMEOUT, processes: int = 1) -> None:
        self.max_bytes = max_bytes
        self.timeout = timeout
        self.incomplete = Permits(
            max(MAX_COMING_BYTES // processes, 4 * max_bytes),
            "as many bytes of bodies wait for their ends as the server holds",
        )


class Body:
    """The body of one request; `receive` is the rest of the request's ASGI `receive`.

    A gzip body of a POST is inflated, unless it has a digest: that covers the compressed bytes. Errors are
    HTTPException, because FastAPI lets no other error through while it reads a body.

    Attributes:
        most: limit in bytes, before and after inflation; the upload route raises it.
        deadline: latest end, in seconds of `time.monotonic()`; the upload route removes it.
        inflates: whether `receive` inflates the body; who passes it on as it was sent makes it False.
    """

    def __init__(self, scope: Scope, receive: Receive, context: Context, bodies: Bodies) -> None:
        self.most, self.deadline = bodies.max_bytes, context.deadline
        self._state, self._context, self._bodies, self._receive = scope["state"], context, bodies, receive
        self._head: Head = self._state[HEAD]
        length = self._head.fields.get(b"content-length", b"")
        self._declared = int(length) if length.isdigit() and len(length) < _LENGTH_DIGITS else 0
        self._counted, self._complete = 0, False
        self._due: float | None = None
        self.inflates = b"content-encoding" in self._head.fields and scope["method"] == "POST" and is_gzip(self._head)
        self._inflating = _Inflating() if self.inflates else None

    @property
    def receive(self) -> Receive:
        """Receives a message of the body; made anew, because a body that kept it would refer to itself."""
        return partial(self._inflating.receive, self) if self._inflating and self.inflates else self.limited

    async def limited(self) -> Message:
        """Receives the next message; refuses the body over its limits (413, 408) or for its framing."""
        if self._complete:
            return await self._receive()
        if max(self._declared, self._counted) > self.most:
            raise self._too_large()
        message = await (self._receive() if ARRIVED in self._state else self._in_time())
        # The protocol has no message for a body that it cannot read.
        if refusal := self._state.get(REFUSAL):
            status, detail = refusal
            raise HTTPException(status, detail, {"Connection": "close"})
        self._counted += len(message.get("body", b""))
        if self._counted > self.most:
            raise self._too_large()
        self._complete = not message.get("more_body", False)
        return message

    async def _in_time(self) -> Message:
        if self._due is None:
            seconds = min(self._bodies.timeout, self.deadline - time.monotonic())
            self._due = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(self._due):
                return await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body did not come in time", {"Connection": "close"}) from None

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body is over {self.most} bytes", {"Connection": "close"})

    async def read(self, permits: Permits | None = None) -> bytes:
        """Reads all of the body; counts the bytes of an incomplete one in `permits`, else in those of all."""
        permits = permits or self._bodies.incomplete
        principal = self._context.principal.name
        parts: list[bytes] = []
        size = 0
        try:
            while (message := await self.receive())["type"] != "http.disconnect":
                part: bytes = message.get("body", b"")
                if not message.get("more_body", False):
                    return b"".join([*parts, part]) if parts else part
                permits.take(principal, len(part))
                parts.append(part)
                size += len(part)
        finally:
            if size:
                permits.give_back(principal, size)
        raise ClientDisconnect

    async def decoded(self, content: bytes, decode: Callable[[bytes], T]) -> T:
        """Checks the digests of the whole body and decodes it, in a thread if it is large."""
        digests = SentDigests(self._head) if has_digest(self._head) else None
        if digests is None and len(content) <= MAX_BYTES_ON_LOOP:
            return decode(content)

        def checked() -> T:
            if digests is not None:
                digests.update(content)
                digests.compare()
            return decode(content)

        return checked() if len(content) <= MAX_BYTES_ON_LOOP else await asyncio.to_thread(checked)


def is_gzip(head: Head) -> bool:
    """Whether a body is one gzip stream without a digest."""
    encodings = [encoding.strip().lower() for encoding in head.all(b"content-encoding")]
    return encodings == ["gzip"] and not has_digest(head)


def has_digest(head: Head) -> bool:
    """Whether a client sent a digest of the body."""
    return b"content-digest" in head.fields or b"digest" in head.fields


class _Inflating:
    """The state of a body's inflation."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_WINDOW)
        self._waiting = b""
        self._size = 0
        self._more = True
        self._done = False

    async def receive(self, body: Body) -> Message:
        if self._done:
            return await body.limited()
        if self._more and not self._waiting:
            message = await body.limited()
            if message["type"] != "http.request":
                return message
            self._waiting, self._more = message.get("body", b""), message.get("more_body", False)
        piece = self._inflate(body.most)
        # A short piece means that the decompressor's buffer is empty.
        self._done = not self._more and not self._waiting and len(piece) < PIECE_BYTES
        if self._done and not self._stream.eof:
            raise _broken()
        if len(piece) == PIECE_BYTES:
            # A few bytes may inflate to many pieces, and no await between these would yield to the event loop.
            await asyncio.sleep(0)
        return {"type": "http.request", "body": piece, "more_body": not self._done}

    def _inflate(self, most: int) -> bytes:
        try:
            piece = self._stream.decompress(self._waiting, PIECE_BYTES)
        except zlib.error:
            raise _broken() from None
        self._waiting = self._stream.unconsumed_tail
        if self._stream.unused_data:
            raise _broken()
        self._size += len(piece)
        if self._size > most:
            raise HTTPException(413, f"the inflated body is over {most} bytes", {"Connection": "close"})
        return piece


def _broken() -> HTTPException:
    return HTTPException(400, "the body is not one gzip stream", {"Connection": "close"})
