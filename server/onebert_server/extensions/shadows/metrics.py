"""The metrics of shadows."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_server.extensions.shadows.shadows import Shadows

# Pairs of labels of two versions, the most frequent ones, that are metrics.
LABELS_SHOWN = 32


class ShadowCounts(Collector):
    """The metrics of shadows: of at most `limit` pairs of versions."""

    def __init__(self, shadows: Shadows, limit: int) -> None:
        self._shadows = shadows
        self._limit = limit

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples; the registry reads their names."""
        return _families()

    def collect(self) -> Iterable[Metric]:
        """The counts of now."""
        answers, left_out, labels = families = _families()
        for version, shadow in self._shadows.pairs()[: self._limit]:
            names = [version.entry.task, str(version.entry.version), str(shadow.entry.version)]
            agreement = self._shadows.agreement(version, shadow)
            answers.add_metric([*names, "true"], agreement.same)
            answers.add_metric([*names, "false"], agreement.answers - agreement.same)
            left_out.add_metric(names, agreement.left_out)
            for pair, count in agreement.labels.most_common(LABELS_SHOWN):
                labels.add_metric([*names, *pair], count)
        return families


def _families() -> tuple[CounterMetricFamily, CounterMetricFamily, CounterMetricFamily]:
    names = ["task", "version", "shadow"]
    return (
        CounterMetricFamily("onebert_shadow_answers", "Answers of a version and its shadow.", labels=[*names, "same"]),
        CounterMetricFamily("onebert_shadow_left_out", "Questions without an answer of the shadow.", labels=names),
        CounterMetricFamily(
            "onebert_shadow_labels",
            "Pairs of labels that a version and its shadow answered.",
            labels=[*names, "label", "shadow_label"],
        ),
    )
