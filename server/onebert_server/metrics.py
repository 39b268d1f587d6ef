"""Prometheus metrics: one registry per server, no names of tasks and no texts in any label."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector

Sample = tuple[str, str, dict[str, str], float]
"""A sample: its family, its own name, its labels, its value."""

_Key = tuple[str, tuple[tuple[str, str], ...]]

IN_PROGRESS = "onebert_http_requests_in_progress"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


class Metrics:
    """What a server counts; the engine reports its batches to `observe_batch`."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "onebert_http_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self._request_seconds = Histogram(
            "onebert_http_request_seconds", "Time to answer.", ("route",), buckets=SECONDS, registry=self.registry
        )
        self.requests_in_progress = Gauge(IN_PROGRESS, "Requests being answered.", registry=self.registry)
        self._rejected = Counter(
            "onebert_rejected", "Requests refused with a typed error.", ("code",), registry=self.registry
        )
        self._uploads = Counter("onebert_uploads", "Uploads by result.", ("result",), registry=self.registry)
        self._batch_sequences = Histogram(
            "onebert_batch_sequences", "Sequences in a batch.", buckets=SEQUENCES, registry=self.registry
        )
        self._batch_tokens = Histogram(
            "onebert_batch_tokens", "Tokens in a batch.", buckets=TOKENS, registry=self.registry
        )
        self._batch_seconds = Histogram(
            "onebert_batch_seconds", "Time of a forward pass.", buckets=SECONDS, registry=self.registry
        )

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Adds a gauge that is read when it is scraped."""
        Gauge(f"onebert_{name}", text, registry=self.registry).set_function(read)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one answered request; `route` is the template."""
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def observe_batch(self, sequences: int, tokens: int, seconds: float) -> None:
        """Counts one forward pass."""
        self._batch_sequences.observe(sequences)
        self._batch_tokens.observe(tokens)
        self._batch_seconds.observe(seconds)

    def count_rejected(self, code: str) -> None:
        """Counts one request that was answered with a problem."""
        self._rejected.labels(code).inc()

    def count_upload(self, result: str) -> None:
        """Counts one upload: `created`, `existing` or the code of the error."""
        self._uploads.labels(result).inc()

    def counted(self) -> list[Sample]:
        """What this process has counted, for another to add to its own; times of creation are no counts.

        A histogram's empty buckets belong to it: without them those of one that nobody else has would come one by one.
        """
        return [
            (family.name, sample.name, dict(sample.labels), sample.value)
            for family in self.registry.collect()
            for sample in family.samples
            if (sample.value or sample.name.endswith("_bucket")) and not sample.name.endswith("_created")
        ]

    def exposition(self, elsewhere: Sequence[Sample] = ()) -> bytes:
        """The text that a Prometheus server scrapes; what was counted elsewhere is added."""
        total = CollectorRegistry()
        total.register(_Total(self.registry, elsewhere))
        return generate_latest(total)


class _Total(Collector):
    """A registry's samples with those of others added to them."""

    def __init__(self, registry: CollectorRegistry, elsewhere: Iterable[Sample]) -> None:
        self._registry = registry
        self._elsewhere = elsewhere

    def collect(self) -> Iterator[Metric]:
        added: defaultdict[str, defaultdict[_Key, float]] = defaultdict(lambda: defaultdict(float))
        for name, sample_name, labels, value in self._elsewhere:
            added[name][sample_name, tuple(labels.items())] += value
        for family in self._registry.collect():
            total = added[family.name]
            family.samples = [
                sample._replace(value=sample.value + total.pop((sample.name, tuple(sample.labels.items())), 0.0))
                for sample in family.samples
            ]
            for (sample_name, own), value in total.items():
                family.add_sample(sample_name, dict(own), value)
            yield family
