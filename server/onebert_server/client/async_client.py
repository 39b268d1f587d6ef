"""The asynchronous client of the HTTP API."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

import httpx

from onebert_server.client.client import Client
from onebert_server.client.exchange import (
    TIMEOUT,
    URL,
    Asking,
    LastSeen,
    Outcome,
    Pause,
    Send,
    Steps,
    arguments,
    opened,
)
from onebert_server.client.questions import Input, OneOptions, classified
from onebert_server.client.tasks import content_of
from onebert_server.contract.answers import TaskResult
from onebert_server.contract.tasks import Pushed

P = ParamSpec("P")
T = TypeVar("T")


def awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    """Types a method of `Client` for AsyncClient, whose `_run` is a coroutine."""
    return cast(Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]], method)


class AsyncClient(Asking):
    """`Client` for asyncio: the same methods, awaited; coroutines may share a client.

    Has the arguments and errors of Client, but `timeout` limits the whole call, even if the reply trickles in.
    """

    def __init__(self, url: str = URL, api_key: str | None = None, timeout: float = TIMEOUT) -> None:
        self._http = opened(httpx.AsyncClient, url, api_key)
        self._timeout = timeout
        self._seen = LastSeen()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    ready = awaited(Client.ready)
    base = awaited(Client.base)
    tasks = awaited(Client.tasks)
    task = awaited(Client.task)
    version = awaited(Client.version)
    download = awaited(Client.download)
    move_alias = awaited(Client.move_alias)
    delete_alias = awaited(Client.delete_alias)
    delete_task = awaited(Client.delete_task)
    rename_task = awaited(Client.rename_task)
    delete_version = awaited(Client.delete_version)
    create_key = awaited(Client.create_key)
    keys = awaited(Client.keys)
    revoke_key = awaited(Client.revoke_key)
    audit = awaited(Client.audit)
    classify_items = awaited(Client.classify_items)
    fanout = awaited(Client.fanout)
    _push = awaited(Client.push)

    async def push(self, task: str, delta: bytes | Path) -> Pushed:
        # In a thread: a file may have tens of MiB, and the event loop must not wait for the disk.
        return await self._push(task, await asyncio.to_thread(content_of, delta))

    # A text or a pair is also a Sequence[Input] to the type checker, so the overloads overlap. The first match wins, as
    # it does at run time.
    @overload
    async def classify(  # type: ignore[overload-overlap]
        self, ref: str, inputs: Input, top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> TaskResult: ...
    @overload
    async def classify(
        self, ref: str, inputs: Sequence[Input], top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> list[TaskResult]: ...
    async def classify(
        self, ref: str, inputs: Input | Sequence[Input], top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> Any:
        return await self._run(classified(self, ref, inputs, top_k, options))

    async def _run(self, steps: Steps[T]) -> T:
        outcome: Outcome = None
        try:
            while True:
                outcome = await self._take(steps.send(outcome))
        except StopIteration as done:
            return cast(T, done.value)

    async def _take(self, step: Send | Pause) -> Outcome:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            # httpx's timeout applies to each network wait, never to their sum.
            async with asyncio.timeout(step.seconds):
                answer = await self._http.request(**arguments(step, self._seen))
        except TimeoutError:
            return httpx.ReadTimeout("the answer is not whole in time")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error
        self._seen.note(answer)
        return answer
