"""Through HTTP: single-text requests for 64 tasks from closed-loop clients, against a real server process.

The load comes from threads of this process with the standard library's HTTP client, which costs about a tenth of what
the server spends on a request; on few cores it still takes its share of them, and the numbers include that.
"""

import http.client
import json
import math
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from onebert_bench.timing import percentile
from onebert_bench.workload import bitfit_delta, sentences, tokenized
from onebert_encoder.base import load_base
from onebert_server.client import Client
from onebert_server.process import serving
from onebert_store.format import dumps

TASKS = 64


def measure_http(
    name: str | None, dtype: str, device: str, clients: tuple[int, ...], seconds: float
) -> dict[str, dict[str, float]]:
    """Requests per second, tokens per second, and p50 and p99 latency in ms, for each number of clients."""
    base = load_base(name)
    texts = sentences(base, 256)
    with (
        tempfile.TemporaryDirectory(prefix="onebert-bench-") as folder,
        serving(Path(folder), base=name, dtype=dtype, device=device) as server,
    ):
        with Client(server.url) as client:
            for seed in range(TASKS):
                client.push(f"task-{seed}", dumps(bitfit_delta(base, seed)))
        mean_tokens = sum(map(len, tokenized(base, texts))) / len(texts)
        _load(server.url, texts, max(clients), seconds / 4)
        return {str(count): _summary(_load(server.url, texts, count, seconds), mean_tokens) for count in clients}


def _load(url: str, texts: list[str], clients: int, seconds: float) -> tuple[list[float], float]:
    """Latencies in ms of every request of all clients, and the seconds it took."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    started = time.perf_counter()
    threads = [
        threading.Thread(target=_client, args=(url, texts, number, started + seconds, latencies[number]))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [value for values in latencies for value in values], time.perf_counter() - started


def _client(url: str, texts: list[str], number: int, until: float, latencies: list[float]) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    turn = number
    while time.perf_counter() < until:
        body = json.dumps({"inputs": texts[turn * 7 % len(texts)]})
        started = time.perf_counter()
        connection.request(
            "POST", f"/v1/tasks/task-{turn % TASKS}/classify", body, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        answer.read()
        # A refusal is counted apart, and never as a quick answer.
        latencies.append((time.perf_counter() - started) * 1e3 if answer.status == 200 else math.inf)
        turn += 1
    connection.close()


def _summary(measured: tuple[list[float], float], mean_tokens: float) -> dict[str, float]:
    latencies, seconds = measured
    answered = [latency for latency in latencies if math.isfinite(latency)]
    rate = len(answered) / seconds
    return {
        "refused": float(len(latencies) - len(answered)),
        "requests_per_second": rate,
        "tokens_per_second": rate * mean_tokens,
        "p50_ms": percentile(answered, 0.5),
        "p99_ms": percentile(answered, 0.99),
    }
