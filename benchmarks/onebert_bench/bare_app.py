"""The least that a Python server of JSON does for a request: uvicorn alone, which answers constants.

`python -m onebert_bench.bare_app DESCRIPTOR` serves on an open socket until it is stopped.
"""

import json
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

_RESULT = {"label": "no", "score": 0.5, "scores": {"no": 0.5, "yes": 0.5}, "tokens": 5, "truncated": False}
_ANSWER = json.dumps({"task": "t", "version": 1, "digest": f"sha256:{0:064}", "results": [_RESULT]}).encode()
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_ANSWER))]

Message = MutableMapping[str, Any]


async def app(
    _: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Parses a body, and answers."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    json.loads(body)
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _ANSWER})


if __name__ == "__main__":
    config = uvicorn.Config(app, lifespan="off", log_level="error", access_log=False, loop="uvloop", http="httptools")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
