"""What a run measures of our own server alone, besides scenes and peers: one entry for each part."""

from collections.abc import Callable, Mapping
from typing import Protocol

from onebert_bench.suite.churn import measure_churn
from onebert_bench.suite.holding import measure_holding
from onebert_bench.suite.layouts import measure_layouts
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.workers import Json
from onebert_bench.suite.workload import Workload


class Part(Protocol):
    """What was found."""

    def as_json(self) -> Json:
        """For the results file."""

    def goals(self) -> list[list[str]]:
        """Lines of the table of goals."""

    def page(self) -> str:
        """Markdown below the part's heading."""


PARTS: Mapping[str, Callable[[Settings, Mapping[str, Workload]], Part]] = {
    "front ends": measure_layouts,
    "loads and unloads": measure_churn,
    "tasks held": measure_holding,
}
