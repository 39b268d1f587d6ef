"""The synchronous client of the HTTP API."""

import time
from typing import Self, TypeVar, cast

import httpx

from onebert_server.client.administration import AdminCalls
from onebert_server.client.exchange import TIMEOUT, URL, LastSeen, Outcome, Pause, Send, Steps, arguments, opened
from onebert_server.client.questions import QuestionCalls
from onebert_server.client.tasks import TaskCalls

T = TypeVar("T")


class Client(TaskCalls, AdminCalls, QuestionCalls):
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
