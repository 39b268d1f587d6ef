"""Sends responses, large ones in pieces as their clients read them."""

from collections.abc import Sequence

from starlette.types import Send

from onebert_server.fairness.shares import Permits
from onebert_server.http.head import Field

# Bytes per send of a large response: a socket buffers about this many before `send` waits.
PIECE_BYTES = 2**16


async def send_whole(
    send: Send, status: int, fields: Sequence[Field], content: bytes, untaken: Permits, principal: str
) -> None:
    """Sends a response; counts the bytes of a large one in `untaken` until they are sent.

    Raises QueueFull before the first byte if too many bytes already wait for clients.
    """
    size = len(content)
    start = {"type": "http.response.start", "status": status, "headers": fields}
    if size <= PIECE_BYTES:
        await send(start)
        await send({"type": "http.response.body", "body": content})
        return
    untaken.take(principal, size)
    try:
        await send(start)
        for end in range(PIECE_BYTES, size + PIECE_BYTES, PIECE_BYTES):
            piece = content[end - PIECE_BYTES : end]
            await send({"type": "http.response.body", "body": piece, "more_body": end < size})
    finally:
        untaken.give_back(principal, size)
