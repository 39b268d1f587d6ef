"""Shadows: versions that compute the questions of another one after it has answered, and are compared with it.

A shadow's work is queued beside the engine's queue, and taken while nothing else waits. Questions without room there,
or without an answer, are left out and counted.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.scores import Logits
from onebert_server.access.context import own_work
from onebert_server.answering.plan import Computed, Plan, Planned, Question
from onebert_server.answering.seen import seen
from onebert_server.answering.tokenizing import Split
from onebert_server.engine.engine import Engine
from onebert_server.engine.passes import Item
from onebert_server.observed import OTHER
from onebert_server.versions.directory import Directory
from onebert_server.versions.version import Version
from onebert_store.errors import OneBertError

logger = logging.getLogger("onebert.shadows")

# Pairs of labels that are counted one by one for two versions, and pairs of versions whose counts are kept: 25 MB.
MAX_LABELS, MAX_VERSIONS = 256, 1024
# Pairs of labels of two versions, the most frequent ones, that are metrics.
LABELS_SHOWN = 32
NO_LABEL = "(none)"


@dataclass
class Agreement:
    """How often two versions answered alike.

    Attributes:
        answers, same: questions that both answered, and those with the same labels.
        left_out: questions that the shadow did not answer.
        labels: by the label of the version that answered, and the shadow's; of several labels one pair each, with
            NO_LABEL for one that the other version does not answer.
    """

    answers: int = 0
    same: int = 0
    left_out: int = 0
    labels: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, live: Sequence[str], shadow: Sequence[str]) -> None:
        self.answers += 1
        self.same += set(live) == set(shadow)
        one_each = len(live) == len(shadow) == 1
        pairs = zip(live, shadow, strict=True) if one_each else _by_label(live, shadow)
        for pair in pairs:
            known = pair in self.labels or len(self.labels) < MAX_LABELS
            self.labels[pair if known else (OTHER, OTHER)] += 1


class Shadowed(NamedTuple):
    """A question as it was answered: by `version`, from this part of the logits of a request."""

    version: Version
    planned: Sequence[Planned]
    input: int
    inputs: Split
    asked: Asked
    part: slice


class Shadows:
    """Has shadows compute, and counts; any thread may read the counts."""

    def __init__(self, engine: Engine, directory: Directory, plan: Plan) -> None:
        self._engine = engine
        self._directory = directory
        self._plan = plan
        self._counts: dict[tuple[Version, Version], Agreement] = {}
        self._lock = threading.Lock()

    def ask(self, one: Shadowed, shadows: Iterable[Version], live: Future[list[Logits]]) -> None:
        """Has pinned shadows compute a question, and unpins them; `live` is the request that answered it."""
        # The caller's own rules would hide differences: both are read by their manifests.
        asked = Asked(window=one.asked.window, whole=one.asked.whole)
        one = one._replace(asked=asked)
        for shadow in shadows:
            planned, request = self._submitted(one, shadow) if live.done() else ((), None)
            if request is None:
                self._ended(one.version, shadow, None)
                continue
            own = one._replace(version=shadow, planned=planned, part=slice(0, None))
            request.add_done_callback(partial(self._computed, one, own, live))

    def agreement(self, version: Version, shadow: Version) -> Agreement:
        """Returns a copy of the counts of two versions."""
        with self._lock:
            found = self._counts.get((version, shadow), Agreement())
            missed = (shadow.missed or {}).get(version.entry.version, 0)
            return replace(found, labels=found.labels.copy(), left_out=found.left_out + missed)

    def pairs(self) -> list[tuple[Version, Version]]:
        """Returns the versions and shadows with counts, as long as both exist."""
        with self._lock:
            return [pair for pair in self._counts if not any(version.retired for version in pair)]

    def _submitted(self, one: Shadowed, shadow: Version) -> tuple[Sequence[Planned], Future[list[Logits]] | None]:
        """Submits a shadow's work; nothing that goes wrong with it may reach the request that it follows."""
        try:
            return self._submit(one, shadow)
        except OneBertError:
            return (), None
        # Catch everything: the request that it follows is answered already.
        except Exception:
            logger.exception("a question of a shadow is left out")
            return (), None

    def _submit(self, one: Shadowed, shadow: Version) -> tuple[Sequence[Planned], Future[list[Logits]] | None]:
        facts = shadow.facts
        host, pieces = self._engine.hosts[facts.base], one.inputs[facts.base][one.input]
        planned = self._plan.expand(pieces, shadow, host.base.tokenizer, one.asked)
        tokenizer = host.base.tokenizer.reading(facts.pooling)
        items = [Item(tokenizer.cut(pieces, each.kept), each.slot.number) for each in planned]
        return planned, self._engine.submit_shadow(host, items, own_work("shadow"))

    def _computed(
        self, one: Shadowed, own: Shadowed, live: Future[list[Logits]], request: Future[list[Logits]]
    ) -> None:
        """Runs on the thread that ends the shadow's request, and compares both."""
        said: list[Sequence[str] | None] = [None]
        try:
            said = [self._labels(*each) for each in ((one, live), (own, request))]
        # Catch everything: the pin must be given back.
        except Exception:
            logger.exception("the answer of a shadow cannot be compared")
        finally:
            self._ended(one.version, own.version, None if None in said else said)

    def _labels(self, one: Shadowed, request: Future[list[Logits]]) -> Sequence[str] | None:
        """Returns the answered labels; None without an answer."""
        if request.cancelled() or request.exception() is not None:
            return None
        logits = request.result()[one.part]
        if not all(np.isfinite(each).all() for each in logits):
            return None
        facts = one.version.facts
        computed = [Computed(each.kept, each.role, found) for each, found in zip(one.planned, logits, strict=True)]
        question = Question("", one.inputs[facts.base][one.input], facts, one.asked)
        tokenizer = self._engine.hosts[facts.base].base.tokenizer
        return seen(facts, self._plan.reduce(question, computed, tokenizer).answer).labels

    def _ended(self, version: Version, shadow: Version, said: Sequence[Sequence[str] | None] | None) -> None:
        with self._lock:
            counts = self._counts.setdefault((version, shadow), Agreement())
            if said is None:
                counts.left_out += 1
            else:
                counts.count(*(labels or () for labels in said))
            if len(self._counts) > MAX_VERSIONS:
                retired = (pair for pair in self._counts if any(one.retired for one in pair))
                del self._counts[next(retired, next(iter(self._counts)))]
        self._directory.unpin([(shadow,)])


class ShadowCounts(Collector):
    """The metrics of shadows: of at most `most` pairs of versions."""

    def __init__(self, shadows: Shadows, most: int) -> None:
        self._shadows = shadows
        self._most = most

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples; the registry reads their names."""
        return _families()

    def collect(self) -> Iterable[Metric]:
        """The counts of now."""
        answers, left_out, labels = families = _families()
        for version, shadow in self._shadows.pairs()[: self._most]:
            names = [version.entry.task, str(version.entry.version), str(shadow.entry.version)]
            found = self._shadows.agreement(version, shadow)
            answers.add_metric([*names, "true"], found.same)
            answers.add_metric([*names, "false"], found.answers - found.same)
            left_out.add_metric(names, found.left_out)
            for pair, count in found.labels.most_common(LABELS_SHOWN):
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


def _by_label(live: Sequence[str], shadow: Sequence[str]) -> list[tuple[str, str]]:
    every = dict.fromkeys((*live, *shadow)) or {NO_LABEL: None}
    return [(label if label in live else NO_LABEL, label if label in shadow else NO_LABEL) for label in every]
