"""Merges the metrics of one node's processes (front end and replicas) into one exposition."""

import asyncio
from collections.abc import Container, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from onebert_server.telemetry.metrics import Metrics
from onebert_store.command.cluster import ray


class Part(NamedTuple):
    """The metrics of one process: Ray's node id, Ray Serve's full replica id, and Prometheus' exposition."""

    node: str
    process: str
    text: str


class _Families(Collector):
    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._families: dict[str, Metric] = {}

    def add(self, part: Part) -> None:
        for family in text_string_to_metric_families(part.text):
            known = self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            known.samples += [
                sample._replace(labels={**sample.labels, "process": part.process})
                for sample in family.samples
                if not self._names or sample.name in self._names
            ]

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


async def part(metrics: Metrics) -> Part:
    """Collects the metrics of this process, which must be a Ray Serve replica."""
    from ray import serve  # noqa: PLC0415 - takes a second, and `together` needs no cluster

    name = serve.get_replica_context().replica_id.to_full_id_str()
    text = await asyncio.to_thread(metrics.exposition)
    return Part(ray.get_runtime_context().get_node_id(), name, text.decode())


def together(parts: Iterable[Part], names: Container[str] = ()) -> bytes:
    """Merges the parts and labels each sample with its `process`; `names` selects samples, empty means all."""
    families = _Families(names)
    for part in parts:
        families.add(part)
    registry = CollectorRegistry()
    registry.register(families)
    return generate_latest(registry)
