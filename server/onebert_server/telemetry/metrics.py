"""Prometheus metrics: one registry per server; no label holds a text, and only task metrics hold task names."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from onebert_server.observed import FinishedRequest
from onebert_server.telemetry.counts import AnswerCounts, Listener
from onebert_server.telemetry.tasks import TaskSeries

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

Dropped = Literal["deadline", "left"]
"""Why waiting work was dropped: its deadline passed, or its client left."""


class Metrics:
    """The metrics of a server; the engine reports its batches to `observe_batch`.

    Args:
        tasks: number of versions with series of their own; 0 turns task metrics off.
        exemplars: whether durations carry trace ids as exemplars, for scrapers that accept OpenMetrics.
        answered: get the answers of each version.

    Attributes:
        answers: what is counted of each version.
    """

    def __init__(self, tasks: int = 0, exemplars: bool = False, answered: list[Listener] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._exemplars = exemplars
        self.answers = AnswerCounts(tasks, answered)
        if tasks:
            self.registry.register(TaskSeries(self.answers))
        self.busy_seconds = 0.0
        self._requests = self.counter("http_requests", "Requests answered.", "method", "route", "status")
        self._request_seconds = self._histogram("http_request_seconds", "Time to answer.", SECONDS, "route")
        # Counts of the two metrics above by (method, route, status); there are few.
        self._of: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._in_progress = 0
        self.gauge("http_requests_in_progress", "Requests being answered.", lambda: self._in_progress)
        self._rejected = self.counter("rejected", "Requests refused with a typed error.", "code")
        self._uploads = self.counter("uploads", "Uploads by result.", "result")
        self._batch_sequences = self._histogram("batch_sequences", "Sequences in a batch.", SEQUENCES)
        self._batch_tokens = self._histogram("batch_tokens", "Tokens in a batch.", TOKENS)
        self._batch_seconds = self._histogram("batch_seconds", "Time of a forward pass.", SECONDS)
        self._queue_wait = self._histogram(
            "queue_wait_seconds", "Time that a request waited until its work began.", SECONDS
        )
        self._dropped = self.counter("dropped", "Requests whose waiting work was dropped.", "why")
        self._left = self.counter(
            "left_sequences", "Sequences of requests whose client left, by what had become of them until then.", "state"
        )

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(f"onebert_{name}", text, registry=self.registry).set_function(read)

    def gauge_of(self, label: str, name: str, text: str, reads: Mapping[str, Callable[[], float]]) -> None:
        """Adds a gauge with a series for each value of the label; without the label if there is only one."""
        if len(reads) == 1:
            return self.gauge(name, text, *reads.values())
        gauge = Gauge(f"onebert_{name}", text, [label], registry=self.registry)
        for value, read in reads.items():
            gauge.labels(value).set_function(read)

    def request_began(self) -> None:
        self._in_progress += 1

    def requests_ended(self, ended: Sequence[FinishedRequest], began_here: bool = True) -> None:
        """Counts finished requests; `add_in_progress` has those that did not begin here."""
        self._in_progress -= len(ended) if began_here else 0
        for method, route, status, seconds, problem, _, trace_id, _ in ended:
            key = method, route, status
            if key not in self._of:
                self._of[key] = self._requests.labels(*key), self._request_seconds.labels(route)
            count, duration = self._of[key]
            count.inc()
            duration.observe(seconds, {"trace_id": trace_id} if trace_id else None)
            if problem is not None:
                self._rejected.labels(problem).inc()
        self.answers.count(ended)

    def add_in_progress(self, change: int) -> None:
        """Adds a change in the number of requests that another process is answering."""
        self._in_progress += change

    def observe_batch(self, sequences: int, tokens: int, seconds: float) -> None:
        self._batch_sequences.observe(sequences)
        self._batch_tokens.observe(tokens)
        self._batch_seconds.observe(seconds)
        self.busy_seconds += seconds

    def observe_waits(self, seconds: Sequence[float]) -> None:
        """Counts for each request the time until its first sequence is taken."""
        for wait in seconds:
            self._queue_wait.observe(wait)

    def count_dropped(self, why: Dropped, requests: int) -> None:
        """Counts requests with waiting sequences that were dropped."""
        self._dropped.labels(why).inc(requests)

    def count_left(self, waiting: int, running: int, computed: int) -> None:
        """Counts the sequences, by their state, of requests that nobody waits for any more."""
        for state, sequences in (("waiting", waiting), ("running", running), ("computed", computed)):
            self._left.labels(state).inc(sequences)

    def count_upload(self, result: str) -> None:
        """Counts one upload by its result: `created`, `existing` or an error code."""
        self._uploads.labels(result).inc()

    def exposition(self, names: Sequence[str] = ()) -> bytes:
        """Returns the text for a scrape; `names` restricts it to these samples."""
        return generate_latest(self._of_names(names))

    async def exposition_for(self, accept: str, names: Sequence[str] = ()) -> tuple[bytes, str]:
        """Returns the text for a scrape and its media type, written in a thread, since many tasks take long."""
        if self._exemplars:
            write, media_type = choose_encoder(accept)
            return await asyncio.to_thread(write, self._of_names(names)), media_type
        return await asyncio.to_thread(self.exposition, names), CONTENT_TYPE_LATEST

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"onebert_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"onebert_{name}", text, labels, registry=self.registry, buckets=buckets)

    def _of_names(self, names: Sequence[str]) -> Collector:
        return self.registry.restricted_registry(names) if names else self.registry
