"""The metrics of one node of a cluster: those of its front end and of its replicas, in one text."""

import asyncio
from collections.abc import Container, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from onebert_server.metrics import Metrics
from onebert_store.command.cluster import ray


class Part(NamedTuple):
    """What one process counts.

    Attributes:
        node: the id of the node that it is on.
        process: the name of its replica of a deployment.
        text: its metrics as Prometheus reads them.
    """

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
    """What this process counts, which is a replica of a deployment; its text is made in a thread."""
    from ray import serve  # noqa: PLC0415 - takes a second, and `together` needs no cluster

    name = serve.get_replica_context().replica_id.to_full_id_str()
    text = await asyncio.to_thread(metrics.exposition)
    return Part(ray.get_runtime_context().get_node_id(), name, text.decode())


def together(parts: Iterable[Part], names: Container[str] = ()) -> bytes:
    """One text; each sample says by the label `process` whose it is. With names, of samples that have one of these."""
    families = _Families(names)
    for one in parts:
        families.add(one)
    registry = CollectorRegistry()
    registry.register(families)
    return generate_latest(registry)
