"""Requests in the background: a steady stream, and a measured load."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from statistics import quantiles
from types import TracebackType
from typing import Self

from onebert_server.client import Client, Input, TaskResult
from onebert_store.errors import OneBertError

Item = tuple[str, Input]


@dataclass(frozen=True)
class Answer:
    """The results of one request, and the times of request and reply in seconds of the monotonic clock."""

    asked: float
    given: float
    results: list[TaskResult]

    @property
    def seconds(self) -> float:
        return self.given - self.asked


class Stream:
    """Sends text after text to one task, from its own thread, while the `with` block runs.

    The block starts after the first answer. It raises OneBertError at its end if a request failed.
    """

    def __init__(self, url: str, task: str, texts: Sequence[Input]) -> None:
        self._url, self._task, self._texts = url, task, texts
        self._answers: list[Answer] = []
        self._error: OneBertError | None = None
        self._flowing, self._enough = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            with Client(self._url) as client:
                for text in cycle(self._texts):
                    if self._enough.is_set():
                        return
                    asked = time.monotonic()
                    result = client.classify(self._task, text)
                    self._answers.append(Answer(asked, time.monotonic(), [result]))
                    self._flowing.set()
        except OneBertError as error:
            self._error = error
        finally:
            self._flowing.set()

    def between(self, start: float, end: float) -> list[Answer]:
        """The answers whose requests were running at some time between start and end."""
        return [answer for answer in self._answers if answer.asked < end and answer.given > start]

    def __enter__(self) -> Self:
        self._thread.start()
        self._flowing.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enough.set()
        self._thread.join()
        if self._error and not error:
            raise self._error


@dataclass
class Load:
    """The measurements of a load: wall-clock seconds of all requests together, and seconds of each."""

    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def latency(self, percent: int) -> float:
        return quantiles(self.latencies, n=100, method="inclusive")[percent - 1]


def measure(url: str, requests: Sequence[Sequence[Item]], clients: int) -> Load:
    """Sends every request once, from several clients in parallel; each waits for its answer.

    Raises OneBertError if a request fails.
    """
    load = Load()
    connections = [Client(url) for _ in range(clients)]
    started = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        shares = [requests[number::clients] for number in range(clients)]
        for answers in pool.map(_ask_all, connections, shares):
            for answer in answers:
                load.texts += len(answer.results)
                load.tokens += sum(result.tokens or 0 for result in answer.results)
                load.latencies.append(answer.seconds)
    load.seconds = time.monotonic() - started
    return load


def _ask_all(client: Client, requests: Sequence[Sequence[Item]]) -> list[Answer]:
    answers = []
    with client:
        for items in requests:
            asked = time.monotonic()
            results = client.classify_items(items)
            answers.append(Answer(asked, time.monotonic(), results))
    return answers
