"""The client of the native HTTP interface that is awaited; calls.py says what it does."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast, overload

import httpx

from onebert_server.client import administration, calls
from onebert_server.client.calls import Input, Item, ManyOptions, OneOptions, Wait
from onebert_server.client.exchange import (
    TIMEOUT,
    URL,
    LastSeen,
    Outcome,
    Pause,
    Send,
    Steps,
    arguments,
    checked,
    headers_of,
)
from onebert_server.client.results import (
    UNLIMITED,
    AliasPlace,
    BaseFacts,
    Change,
    KeyFacts,
    KeyQuotas,
    MadeKey,
    Pushed,
    TaskFacts,
    TaskResult,
    TaskSummary,
    VersionFacts,
)
from onebert_store.errors import InvalidInput

T = TypeVar("T")


class AsyncClient:
    """`Client` for asyncio: the same methods, awaited; coroutines may share one.

    Args and raises: as of `Client`, with `timeout` as a bound on the whole, however the answer comes.
    """

    def __init__(self, url: str = URL, api_key: str | None = None, timeout: float = TIMEOUT) -> None:
        try:
            self._http = httpx.AsyncClient(base_url=checked(url), headers=headers_of(api_key))
        except (httpx.InvalidURL, UnicodeEncodeError):
            raise InvalidInput("the URL or the API key is not valid") from None
        self._timeout = timeout
        self._seen = LastSeen()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def ready(self) -> bool:
        """See `Client.ready`."""
        return await self._run(calls.ready(self._timeout))

    async def base(self) -> BaseFacts:
        """See `Client.base`."""
        return await self._run(calls.base(self._timeout))

    async def tasks(self) -> list[TaskSummary]:
        """See `Client.tasks`."""
        return await self._run(calls.tasks(self._timeout))

    async def task(self, name: str) -> TaskFacts:
        """See `Client.task`."""
        return await self._run(calls.task(name, self._timeout))

    async def version(self, name: str, version: int) -> VersionFacts:
        """See `Client.version`."""
        return await self._run(calls.version(name, version, self._timeout))

    async def download(self, name: str, version: int) -> bytes:
        """See `Client.download`."""
        return await self._run(calls.download(name, version, self._timeout))

    async def push(self, task: str, delta: bytes | Path) -> Pushed:
        """See `Client.push`."""
        # A file may have tens of mebibytes: the other coroutines of the event loop do not wait for a disk.
        content = await asyncio.to_thread(calls.content_of, delta)
        return await self._run(calls.push(task, content, self._timeout))

    async def move_alias(
        self, task: str, alias: str, version: int, expected: int | None, wait: Wait | None = None
    ) -> AliasPlace:
        """See `Client.move_alias`."""
        return await self._run(calls.move_alias(task, alias, version, expected, wait, self._timeout))

    async def delete_alias(self, task: str, alias: str, expected: int) -> None:
        """See `Client.delete_alias`."""
        await self._run(calls.delete_alias(task, alias, expected, self._timeout))

    async def delete_task(self, task: str) -> None:
        """See `Client.delete_task`."""
        await self._run(calls.delete_task(task, self._timeout))

    async def rename_task(self, task: str, name: str) -> None:
        """See `Client.rename_task`."""
        await self._run(calls.rename_task(task, name, self._timeout))

    async def delete_version(self, task: str, version: int) -> None:
        """See `Client.delete_version`."""
        await self._run(calls.delete_version(task, version, self._timeout))

    async def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        tasks: Sequence[str],
        default_task: str | None = None,
        quotas: KeyQuotas = UNLIMITED,
        expires_at: datetime | None = None,
    ) -> MadeKey:
        """See `Client.create_key`."""
        return await self._run(
            administration.create_key(name, scopes, tasks, default_task, quotas, expires_at, self._timeout)
        )

    async def keys(self) -> list[KeyFacts]:
        """See `Client.keys`."""
        return await self._run(administration.keys(self._timeout))

    async def revoke_key(self, key_id: str) -> None:
        """See `Client.revoke_key`."""
        await self._run(administration.revoke_key(key_id, self._timeout))

    async def audit(
        self,
        after: int = 0,
        most: int = 1000,
        task: str | None = None,
        principal: str | None = None,
        since: datetime | None = None,
    ) -> list[Change]:
        """See `Client.audit`."""
        return await self._run(administration.audit(after, most, task, principal, since, self._timeout))

    # A text or a pair is a sequence of texts, too, and Python has no type for the sequences that are neither: the
    # signatures overlap, and the first that fits counts, as it does when the method runs.
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
        """See `Client.classify`."""
        return await self._run(calls.classify(ref, inputs, top_k, self._timeout, options))

    async def classify_items(
        self, items: Sequence[Item], top_k: int | None = None, **options: Unpack[ManyOptions]
    ) -> list[TaskResult]:
        """See `Client.classify_items`."""
        return await self._run(calls.classify_items(items, top_k, self._timeout, options))

    async def fanout(
        self, one: Input, tasks: Sequence[str] = ("*",), top_k: int | None = None, **options: Unpack[ManyOptions]
    ) -> list[TaskResult]:
        """See `Client.fanout`."""
        return await self._run(calls.fanout(one, tasks, top_k, self._timeout, options))

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
            # httpx bounds each wait for the network, and never the sum of them.
            async with asyncio.timeout(step.seconds):
                answer = await self._http.request(**arguments(step, self._seen))
        except TimeoutError:
            return httpx.ReadTimeout("the answer is not whole in time")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error
        self._seen.note(answer)
        return answer
