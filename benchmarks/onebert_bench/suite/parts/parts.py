"""The parts of a run that measure OneBERT's server alone, without peers: one entry for each."""

from collections.abc import Callable, Mapping
from typing import Protocol

from onebert_bench.suite.measure import Settings
from onebert_bench.suite.parts.churn import measure_churn
from onebert_bench.suite.parts.holding import measure_holding
from onebert_bench.suite.parts.layouts import measure_layouts
from onebert_bench.suite.peers.workers import Json
from onebert_bench.suite.workload import Workload


class Part(Protocol):
    """The result of a part."""

    def as_json(self) -> Json:
        """The result as JSON values, for the results file."""

    def goals(self) -> list[list[str]]:
        """Lines of the table of goals."""

    def page(self) -> str:
        """Markdown below the part's heading."""


PARTS: Mapping[str, Callable[[Settings, Mapping[str, Workload]], Part]] = {
    "front ends": measure_layouts,
    "loads and unloads": measure_churn,
    "tasks held": measure_holding,
}
