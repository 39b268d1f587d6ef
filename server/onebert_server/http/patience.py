"""How long an answer is worked on: until its deadline, and while the client is there."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from onebert_server.context import Context
from onebert_store.errors import DeadlineExceeded


@asynccontextmanager
async def patience(context: Context, receive: Receive) -> AsyncIterator[None]:
    """Cancels what is awaited inside when nobody waits for it any more.

    Args:
        context: of the request.
        receive: of the request, whose body has been read.

    Raises:
        DeadlineExceeded: its time was over.
        ClientDisconnect: the client has left.
    """
    working = asyncio.current_task()
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        if working is not None:
            working.cancel()

    watcher = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(context.deadline - time.monotonic()) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded("the answer did not come in time; ask with a longer X-Request-Timeout") from None
    except asyncio.CancelledError:
        if not left or (working is not None and working.uncancel()):
            raise
        raise ClientDisconnect from None
    finally:
        watcher.cancel()
