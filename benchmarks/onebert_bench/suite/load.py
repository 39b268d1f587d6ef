"""Load for any server: clients that each send the next request when they have the answer to the last."""

import http.client
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from onebert_bench.timing import percentile


@dataclass(frozen=True)
class Request:
    """One request by POST."""

    path: str
    body: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Load:
    """What clients saw.

    Attributes:
        answered: requests answered with 200.
        refused: all others.
    """

    answered: int
    refused: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answered / self.seconds


def run_load(url: str, request_of_turn: Callable[[int], Request], clients: int, seconds: float) -> Load:
    """Sends requests from threads of this process for so long; turn n of client c is request `c * 1009 + n`."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    refused = [0] * clients
    started = time.perf_counter()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
        turn = number * 1009
        while time.perf_counter() < started + seconds:
            request = request_of_turn(turn)
            sent = time.perf_counter()
            connection.request("POST", request.path, request.body, dict(request.headers))
            answer = connection.getresponse()
            answer.read()
            if answer.status == http.client.OK:
                latencies[number].append((time.perf_counter() - sent) * 1e3)
            else:
                refused[number] += 1
            turn += 1
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [value for values in latencies for value in values] or [float("nan")]
    return Load(
        answered=sum(map(len, latencies)),
        refused=sum(refused),
        seconds=time.perf_counter() - started,
        p50_ms=percentile(every, 0.5),
        p99_ms=percentile(every, 0.99),
    )
