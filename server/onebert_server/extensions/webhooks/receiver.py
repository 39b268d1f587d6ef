"""The operator's receiver of webhooks: one attempt at a time, bounded as a whole."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onebert_server.extensions.webhooks.message import WebhookMessage, signed
from onebert_server.loopback import direct_mounts

# Seconds that a whole attempt may take, however the receiver spreads its bytes.
TIMEOUT = 15.0


@contextmanager
def open_receiver(url: str, secret: bytes) -> Iterator[Callable[[WebhookMessage], int | str]]:
    """Yields what makes one attempt, for one thread; it returns the status, or the name of the failure."""
    import httpx  # noqa: PLC0415 - slow to import, and few servers send webhooks

    async def attempt(message: WebhookMessage) -> int:
        fields = signed(message, secret, int(time.time()))
        posting = client.stream("POST", url, content=message.body, headers=fields)
        # The answer's body is not read.
        async with asyncio.timeout(TIMEOUT), posting as response:
            return response.status_code

    def post(message: WebhookMessage) -> int | str:
        try:
            return runner.run(attempt(message))
        except (httpx.HTTPError, TimeoutError) as error:
            return type(error).__name__

    # An event loop, because httpx's own timeout applies to each read.
    with asyncio.Runner() as runner:
        client = httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False, mounts=direct_mounts(url))
        yield post
        runner.run(client.aclose())
