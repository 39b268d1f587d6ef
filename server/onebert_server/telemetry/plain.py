"""Counters and histograms that take no lock, as one thread counts; any thread collects.

Their exposition equals that of `prometheus_client`, which takes a lock for every number.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

# The variable by which `prometheus_client` leaves out when a series began.
_SHOWS_CREATED = os.environ.get("PROMETHEUS_DISABLE_CREATED_SERIES", "").lower() not in ("true", "1", "t")


def _now() -> float | None:
    return time.time() if _SHOWS_CREATED else None


class Count:
    """One counter: add to `value`."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.created, self.value = _now(), 0


class Histogram:
    """One histogram with these upper bounds; the last bucket has none."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_sum", "created")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.created = _now()
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: dict[int, Exemplar] = {}
        self._sum = 0.0

    def observe(self, value: float, trace_id: str | None = None) -> None:
        bucket = bisect_left(self._bounds, value)
        self._counts[bucket] += 1
        self._sum += value
        if trace_id is not None:
            self._exemplars[bucket] = Exemplar({"trace_id": trace_id}, value, time.time())

    def observe_all(self, values: Iterable[float]) -> None:
        bounds, counts = self._bounds, self._counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self._sum += value

    def copy(self) -> "Histogram":
        copied = Histogram(self._bounds)
        copied._counts, copied._sum = self._counts.copy(), self._sum
        return copied

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        bounds, exemplars = [*map(floatToGoString, self._bounds), "+Inf"], self._exemplars.copy()
        totals = enumerate(accumulate(self._counts.copy()))
        buckets: Any = [(bounds[bucket], total, exemplars.get(bucket)) for bucket, total in totals]
        family.add_metric(labels, buckets=buckets, sum_value=self._sum)


class Counts(Collector):
    """A counter for each combination of labels."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._family = name, text, labels
        self._of: dict[tuple[str, ...], Count] = {}

    def of(self, *labels: str) -> Count:
        """Returns the counter of these labels; keep it, if that is cheaper."""
        return self._of.setdefault(labels, Count())

    def describe(self) -> Iterable[Metric]:
        name, text, labels = self._family
        return [CounterMetricFamily(name, text, labels=labels)]

    def collect(self) -> Iterable[Metric]:
        name, text, labels = self._family
        family = CounterMetricFamily(name, text, labels=labels)
        for key, one in self._of.copy().items():
            family.add_metric(key, one.value, created=one.created)
        return [family]


class Histograms(Collector):
    """A histogram for each combination of labels."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> None:
        self._family, self._bounds = (name, text, labels), bounds
        self._of: dict[tuple[str, ...], Histogram] = {}

    def of(self, *labels: str) -> Histogram:
        """Returns the histogram of these labels; keep it, if that is cheaper."""
        return self._of.setdefault(labels, Histogram(self._bounds))

    def describe(self) -> Iterable[Metric]:
        name, text, labels = self._family
        return [HistogramMetricFamily(name, text, labels=labels)]

    def collect(self) -> Iterable[Metric]:
        name, text, labels = self._family
        family = HistogramMetricFamily(name, text, labels=labels)
        for key, one in self._of.copy().items():
            one.add_to(family, key)
            if one.created is not None:
                family.add_sample(f"{name}_created", dict(zip(labels, key, strict=True)), one.created)
        return [family]
