"""The clients of the native HTTP interface: `Client` waits, `AsyncClient` is awaited; calls.py says what they do."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

import httpx

from onebert_server.client import calls
from onebert_server.client.calls import Input, Item
from onebert_server.client.exchange import LastSeen, Outcome, Pause, Send, Steps
from onebert_server.client.results import (
    AliasPlace,
    BaseFacts,
    Pushed,
    TaskFacts,
    TaskResult,
    TaskSummary,
    VersionFacts,
)
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.errors import InvalidInput

URL = "http://127.0.0.1:8000"
TIMEOUT = 60.0

T = TypeVar("T")


class Client:
    """Speaks to one server; every refusal comes back as the OneBertError of its code.

    A request that the server refuses for now (429, 503 with `Retry-After`) is sent again when the server says so, as
    often as the timeout allows; moves of aliases and deletions are not. More inputs than one request takes go out in
    several, all answered by the version that answered the first. What this client has changed is known to whichever of
    several servers answers its later requests. Threads may share a client.

    Args:
        url: the server's address.
        api_key: sent as a bearer token when given.
        timeout: seconds for one request with its repetitions; the server is told and drops what is late. The bound is
            on each wait for the network: only a server whose answer comes in drops makes a call take longer.

    Raises:
        InvalidInput: the address or the key cannot be one.
    """

    def __init__(self, url: str = URL, api_key: str | None = None, timeout: float = TIMEOUT) -> None:
        try:
            self._http = httpx.Client(base_url=_checked(url), headers=_headers(api_key))
        except (httpx.InvalidURL, UnicodeEncodeError):
            raise InvalidInput("the URL or the API key is not valid") from None
        self._timeout = timeout
        self._seen = LastSeen()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether the server answers and is ready."""
        return self._run(calls.ready(self._timeout))

    def base(self) -> BaseFacts:
        """The base, and the shapes that a delta for it may touch."""
        return self._run(calls.base(self._timeout))

    def tasks(self) -> list[TaskSummary]:
        """All tasks, by name."""
        return self._run(calls.tasks(self._timeout))

    def task(self, name: str) -> TaskFacts:
        """One task with a summary of each version."""
        return self._run(calls.task(name, self._timeout))

    def version(self, name: str, version: int) -> VersionFacts:
        """One version with its manifest."""
        return self._run(calls.version(name, version, self._timeout))

    def download(self, name: str, version: int) -> bytes:
        """The canonical bytes of a version's delta file."""
        return self._run(calls.download(name, version, self._timeout))

    def push(self, task: str, delta: bytes | Path) -> Pushed:
        """Uploads a delta file as the next version of a task; equal content is an equal version.

        Args:
            task: its name.
            delta: the file or its content.

        Raises:
            InvalidDelta: the file is refused, and nothing of it is stored.
        """
        return self._run(calls.push(task, calls.content_of(delta), self._timeout))

    def move_alias(self, task: str, alias: str, version: int, expected: int | None) -> AliasPlace:
        """Points an alias at a version if it still points at `expected` (None: if it does not exist).

        Raises:
            AliasConflict: it points elsewhere, and stays there.
        """
        return self._run(calls.move_alias(task, alias, version, expected, self._timeout))

    def delete_alias(self, task: str, alias: str, expected: int) -> None:
        """Deletes an alias if it still points at `expected`.

        Raises:
            AliasConflict: it points elsewhere, and stays.
        """
        self._run(calls.delete_alias(task, alias, expected, self._timeout))

    def delete_task(self, task: str) -> None:
        """Deletes a task with all of its aliases and versions."""
        self._run(calls.delete_task(task, self._timeout))

    def delete_version(self, task: str, version: int) -> None:
        """Deletes a version.

        Raises:
            VersionInUse: an alias points at it.
        """
        self._run(calls.delete_version(task, version, self._timeout))

    # A text or a pair is a sequence of texts, too, and Python has no type for the sequences that are neither: the
    # signatures overlap, and the first that fits counts, as it does when the method runs.
    @overload
    def classify(self, ref: str, inputs: Input, top_k: int | None = None) -> TaskResult: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, ref: str, inputs: Sequence[Input], top_k: int | None = None) -> list[TaskResult]: ...
    def classify(self, ref: str, inputs: Input | Sequence[Input], top_k: int | None = None) -> Any:
        """Classifies one input, or any number of them, with one version of a task.

        Args:
            ref: `name`, `name@3` or `name@alias`, of any task type.
            inputs: one, or a sequence of them; a tuple is a pair of texts, of a span task (question, context).
            top_k: how many scores to give, best first (None: all); of a span task, how many answers (None: one, at
                most 20).

        Returns:
            The answer; of a sequence a list of answers in its order.
        """
        return self._run(calls.classify(ref, inputs, top_k, self._timeout))

    def classify_items(self, items: Sequence[Item], top_k: int | None = None) -> list[TaskResult]:
        """Classifies (reference, input) items of any mix of tasks; answers in their order."""
        return self._run(calls.classify_items(items, top_k, self._timeout))

    def fanout(self, one: Input, tasks: Sequence[str] = ("*",), top_k: int | None = None) -> list[TaskResult]:
        """Classifies one input with up to 1024 tasks; `*`: the live version of every task that takes such an input."""
        return self._run(calls.fanout(one, tasks, top_k, self._timeout))

    def _run(self, steps: Steps[T]) -> T:
        outcome: Outcome = None
        try:
            while True:
                outcome = self._take(steps.send(outcome))
        except StopIteration as done:
            return cast(T, done.value)

    def _take(self, step: Send | Pause) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            answer = self._http.request(**_arguments(step, self._seen))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error
        self._seen.note(answer)
        return answer


class AsyncClient:
    """`Client` for asyncio: the same methods, awaited; coroutines may share one.

    Args and raises: as of `Client`, with `timeout` as a bound on the whole, however the answer comes.
    """

    def __init__(self, url: str = URL, api_key: str | None = None, timeout: float = TIMEOUT) -> None:
        try:
            self._http = httpx.AsyncClient(base_url=_checked(url), headers=_headers(api_key))
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

    async def move_alias(self, task: str, alias: str, version: int, expected: int | None) -> AliasPlace:
        """See `Client.move_alias`."""
        return await self._run(calls.move_alias(task, alias, version, expected, self._timeout))

    async def delete_alias(self, task: str, alias: str, expected: int) -> None:
        """See `Client.delete_alias`."""
        await self._run(calls.delete_alias(task, alias, expected, self._timeout))

    async def delete_task(self, task: str) -> None:
        """See `Client.delete_task`."""
        await self._run(calls.delete_task(task, self._timeout))

    async def delete_version(self, task: str, version: int) -> None:
        """See `Client.delete_version`."""
        await self._run(calls.delete_version(task, version, self._timeout))

    # A text or a pair is a sequence of texts, too, and Python has no type for the sequences that are neither: the
    # signatures overlap, and the first that fits counts, as it does when the method runs.
    @overload
    async def classify(self, ref: str, inputs: Input, top_k: int | None = None) -> TaskResult: ...  # type: ignore[overload-overlap]
    @overload
    async def classify(self, ref: str, inputs: Sequence[Input], top_k: int | None = None) -> list[TaskResult]: ...
    async def classify(self, ref: str, inputs: Input | Sequence[Input], top_k: int | None = None) -> Any:
        """See `Client.classify`."""
        return await self._run(calls.classify(ref, inputs, top_k, self._timeout))

    async def classify_items(self, items: Sequence[Item], top_k: int | None = None) -> list[TaskResult]:
        """See `Client.classify_items`."""
        return await self._run(calls.classify_items(items, top_k, self._timeout))

    async def fanout(self, one: Input, tasks: Sequence[str] = ("*",), top_k: int | None = None) -> list[TaskResult]:
        """See `Client.fanout`."""
        return await self._run(calls.fanout(one, tasks, top_k, self._timeout))

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
                answer = await self._http.request(**_arguments(step, self._seen))
        except TimeoutError:
            return httpx.ReadTimeout("the answer is not whole in time")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error
        self._seen.note(answer)
        return answer


def _checked(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise InvalidInput("the server's URL starts with http:// or https://")
    return url


def _headers(api_key: str | None) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def _arguments(step: Send, seen: LastSeen) -> dict[str, Any]:
    """What httpx is to send; the server learns how long its answer is waited for, as far as it can be told."""
    told = min(step.seconds, MAX_REQUEST_TIMEOUT)
    return {
        "method": step.request.method,
        "url": step.request.path,
        "content": step.request.content or None,
        "headers": {**step.request.headers, **seen.headers(), "X-Request-Timeout": f"{told:.3f}"},
        "timeout": step.seconds,
    }
