"""The asynchronous client of the HTTP API."""

import asyncio
from pathlib import Path
from typing import Any, Self

import httpx

from onebert_server.client.administration import AdminCalls
from onebert_server.client.exchange import TIMEOUT, URL, LastSeen, opened
from onebert_server.client.feedback import FeedbackCalls
from onebert_server.client.questions import QuestionCalls
from onebert_server.client.tasks import TaskCalls


class AsyncClient(TaskCalls, AdminCalls, FeedbackCalls, QuestionCalls):
    """`Client` for asyncio: the same methods, awaited; coroutines may share a client.

    Has the arguments and errors of Client, but `timeout` limits the whole call, even if the reply trickles in.
    """

    def __init__(self, url: str = URL, api_key: str | None = None, timeout: float = TIMEOUT) -> None:
        self._http = opened(httpx.AsyncClient, url, api_key)
        self._timeout = timeout
        self._last_seen = LastSeen()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _send(self, **arguments: Any) -> httpx.Response:
        try:
            # httpx's timeout applies to each network wait, never to their sum.
            async with asyncio.timeout(arguments["timeout"]):
                response: httpx.Response = await self._http.request(**arguments)
                return response
        except TimeoutError:
            raise httpx.ReadTimeout("the answer is not whole in time") from None

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _read(self, file: Path) -> bytes:
        # In a thread: a file may have tens of MiB, and the event loop must not wait for the disk.
        return await asyncio.to_thread(file.read_bytes)
