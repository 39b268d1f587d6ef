"""Requests in the background: a steady stream, and a measured load."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from statistics import quantiles

from onebert_server.client import Client, Input, TaskResult

Item = tuple[str, Input]


@dataclass(frozen=True)
class Answer:
    """The results of one request, and the times of request and reply in seconds of the monotonic clock."""

    sent: float
    received: float
    results: list[TaskResult]

    @property
    def seconds(self) -> float:
        return self.received - self.sent


@contextmanager
def background_requests(url: str, task: str, texts: Sequence[Input]) -> Iterator[list[Answer]]:
    """Sends text after text to one task, from its own thread, while the block runs; yields the growing list of answers.

    The block starts after the first answer. OneBertError is raised at its end if a request failed.
    """
    answers: list[Answer] = []
    flowing, enough = threading.Event(), threading.Event()

    def ask() -> None:
        try:
            with Client(url) as client:
                for text in cycle(texts):
                    if enough.is_set():
                        return
                    sent = time.monotonic()
                    result = client.classify(task, text)
                    answers.append(Answer(sent, time.monotonic(), [result]))
                    flowing.set()
        finally:
            flowing.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask)
        flowing.wait()
        try:
            yield answers
        finally:
            enough.set()
        running.result()


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
            sent = time.monotonic()
            results = client.classify_items(items)
            answers.append(Answer(sent, time.monotonic(), results))
    return answers
