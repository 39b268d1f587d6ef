"""The client of the native HTTP interface that waits for its answers."""

import time
from typing import Self, TypeVar, cast

import httpx

from onebert_server.client.administration import AdminCalls
from onebert_server.client.exchange import TIMEOUT, URL, LastSeen, Outcome, Pause, Send, Steps, arguments, opened
from onebert_server.client.questions import QuestionCalls
from onebert_server.client.tasks import TaskCalls

T = TypeVar("T")


class Client(TaskCalls, AdminCalls, QuestionCalls):
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
        self._http = opened(httpx.Client, url, api_key)
        self._timeout = timeout
        self._seen = LastSeen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

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
            answer = self._http.request(**arguments(step, self._seen))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error
        self._seen.note(answer)
        return answer
