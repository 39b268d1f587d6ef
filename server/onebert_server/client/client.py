"""The synchronous client of the HTTP API: the methods of the asynchronous one, run to their end."""

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

import httpx

from onebert_server.client.async_client import AsyncClient
from onebert_server.client.exchange import TIMEOUT, URL, LastSeen, SentQuestions, opened
from onebert_server.client.questions import Input, OneOptions
from onebert_server.contract.answers import TaskResult
from onebert_server.contract.status import TaskInForce, TaskStatus

P = ParamSpec("P")
T = TypeVar("T")


def finished(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends, and so needs no event loop."""
    try:
        call.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise RuntimeError("a method of Client waited for an event loop")


def run(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate["Client", P], T]:
    """Turns a method of AsyncClient into one of Client."""

    @wraps(method)
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return finished(method(self, *args, **kwargs))

    return call


class Client(SentQuestions):
    """A client of one server; raises the OneBertError for the code of a refusal. Threads may share a client.

    Repeats a request after 429 or 503 with `Retry-After`, within the timeout; never moves of aliases, deletions or new
    keys. Splits many inputs into several requests that the same versions answer. Later requests reflect the client's
    own changes, whichever replica answers.

    Args:
        timeout: seconds for one request with its repetitions; the server drops a request after that time. The limit
            applies to each network wait, so only a reply that trickles in can take longer.
    """

    def __init__(self, url: str = URL, api_key: str | None = None, timeout: float = TIMEOUT) -> None:
        self._http = opened(httpx.Client, url, api_key)
        self._timeout = timeout
        self._last_seen = LastSeen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    ready = run(AsyncClient.ready)
    base = run(AsyncClient.base)
    tasks = run(AsyncClient.tasks)
    task = run(AsyncClient.task)
    version = run(AsyncClient.version)
    watch = run(AsyncClient.watch)
    download = run(AsyncClient.download)
    push = run(AsyncClient.push)
    create_from_examples = run(AsyncClient.create_from_examples)
    create_from_labels = run(AsyncClient.create_from_labels)
    alias = run(AsyncClient.alias)
    shadows = run(AsyncClient.shadows)
    verdicts = run(AsyncClient.verdicts)
    move_alias = run(AsyncClient.move_alias)
    promote = run(AsyncClient.promote)
    rollback = run(AsyncClient.rollback)
    rollout = run(AsyncClient.rollout)
    delete_alias = run(AsyncClient.delete_alias)
    gate = run(AsyncClient.gate)
    set_gate = run(AsyncClient.set_gate)
    delete_gate = run(AsyncClient.delete_gate)
    samples = run(AsyncClient.samples)
    set_samples = run(AsyncClient.set_samples)
    delete_samples = run(AsyncClient.delete_samples)
    delete_sample = run(AsyncClient.delete_sample)
    feedback = run(AsyncClient.feedback)
    delete_task = run(AsyncClient.delete_task)
    delete_version = run(AsyncClient.delete_version)
    create_key = run(AsyncClient.create_key)
    keys = run(AsyncClient.keys)
    revoke_key = run(AsyncClient.revoke_key)
    audit = run(AsyncClient.audit)
    review = run(AsyncClient.review)
    feedback_rows = run(AsyncClient.feedback_rows)
    sample_rows = run(AsyncClient.sample_rows)
    classify_items = run(AsyncClient.classify_items)
    fanout = run(AsyncClient.fanout)

    # Again for the type checker, which keeps no overloads through `run`.
    @overload
    def status(self) -> list[TaskStatus]: ...
    @overload
    def status(self, task: str) -> TaskInForce: ...
    @wraps(AsyncClient.status)
    def status(self, *args: Any, **kwargs: Any) -> Any:
        return finished(AsyncClient.status(cast(Any, self), *args, **kwargs))

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, ref: str, inputs: Input, top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> TaskResult: ...
    @overload
    def classify(
        self, ref: str, inputs: Sequence[Input], top_k: int | None = None, **options: Unpack[OneOptions]
    ) -> list[TaskResult]: ...
    @wraps(AsyncClient.classify)
    def classify(self, *args: Any, **kwargs: Any) -> Any:
        return finished(AsyncClient.classify(cast(Any, self), *args, **kwargs))

    async def _send(self, **arguments: Any) -> httpx.Response:
        response: httpx.Response = self._http.request(**arguments)
        return response

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _read(self, file: Path) -> bytes:
        return file.read_bytes()
