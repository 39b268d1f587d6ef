"""The operator's receiver of webhooks: one attempt at a time, bounded as a whole."""

import asyncio
import time
from contextlib import ExitStack
from typing import Self

from onebert_server.extensions.webhooks.message import Message, signed
from onebert_server.loopback import direct_mounts

# Seconds that a whole attempt may take, however the receiver spreads its bytes.
TIMEOUT = 15.0


class Receiver:
    """Posts to one URL, from one thread, while a `with` block runs."""

    def __init__(self, url: str, secret: bytes) -> None:
        self._url, self._secret = url, secret
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        import httpx  # noqa: PLC0415 - slow to import, and few servers send webhooks

        # An event loop, because httpx's own timeout applies to each read.
        self._runner = self._opened.enter_context(asyncio.Runner())
        self._client = httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False, mounts=direct_mounts(self._url))
        self._opened.callback(lambda: self._runner.run(self._client.aclose()))
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def post(self, message: Message) -> int | str:
        """Makes one attempt; returns the status of the response, or the name of the failure."""
        import httpx  # noqa: PLC0415 - as above

        try:
            return self._runner.run(self._post(message))
        except (httpx.HTTPError, TimeoutError) as error:
            return type(error).__name__

    async def _post(self, message: Message) -> int:
        fields = signed(message, self._secret, int(time.time()))
        async with (
            asyncio.timeout(TIMEOUT),
            # The answer's body is not read.
            self._client.stream("POST", self._url, content=message.body, headers=fields) as response,
        ):
            return response.status_code
