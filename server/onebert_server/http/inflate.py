"""Inflates gzip bodies piece by piece and limits their inflated size."""

import asyncio
import zlib

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Bytes to inflate per turn of the event loop, which takes a fraction of a millisecond.
PIECE_BYTES = 2**16
GZIP_WINDOW = 16 + zlib.MAX_WBITS
_DIGESTS = frozenset((b"content-digest", b"digest"))


class InflateMiddleware:
    """Inflates gzip bodies of POST requests, up to `scope["state"]["max_body_bytes"]`, before they reach the routes.

    A body with a digest passes unchanged and its route refuses it, because the digest covers the compressed bytes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not _is_gzip(scope):
            await self.app(scope, receive, send)
            return
        fields = [one for one in scope["headers"] if one[0] not in (b"content-encoding", b"content-length")]
        inflated = _Inflated(receive, scope["state"]["max_body_bytes"])
        await self.app({**scope, "headers": fields}, inflated, send)


def _is_gzip(scope: Scope) -> bool:
    encodings = [value.strip().lower() for name, value in scope["headers"] if name == b"content-encoding"]
    return encodings == [b"gzip"] and not any(name in _DIGESTS for name, _ in scope["headers"])


class _Inflated:
    """A `receive` that inflates the body of another `receive`."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._stream = zlib.decompressobj(GZIP_WINDOW)
        self._waiting = b""
        self._size = 0
        self._more = True
        self._done = False

    async def __call__(self) -> Message:
        if self._done:
            return await self._receive()
        if self._more and not self._waiting:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._waiting, self._more = message.get("body", b""), message.get("more_body", False)
        piece = self._inflate()
        # A short piece means that the decompressor's buffer is empty.
        self._done = not self._more and not self._waiting and len(piece) < PIECE_BYTES
        if self._done and not self._stream.eof:
            raise _broken()
        if len(piece) == PIECE_BYTES:
            # A few bytes may inflate to many pieces, and no await between these would yield to the event loop.
            await asyncio.sleep(0)
        return {"type": "http.request", "body": piece, "more_body": not self._done}

    def _inflate(self) -> bytes:
        try:
            piece = self._stream.decompress(self._waiting, PIECE_BYTES)
        except zlib.error:
            raise _broken() from None
        self._waiting = self._stream.unconsumed_tail
        if self._stream.unused_data:
            raise _broken()
        self._size += len(piece)
        if self._size > self._most:
            raise HTTPException(413, f"the inflated body is over {self._most} bytes", {"Connection": "close"})
        return piece


def _broken() -> HTTPException:
    return HTTPException(400, "the body is not one gzip stream", {"Connection": "close"})
