"""Shadows: versions that compute the questions of another one after it has answered, and are compared with it.

A shadow's work is queued beside the engine's queue, and taken while nothing else waits. Each question counts as one
request against the quotas of whoever set the shadow. Questions without room, or without an answer, are left out and
counted.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from onebert_encoder.answering.scores import Logits
from onebert_server.access.context import own_work
from onebert_server.answering.plan import WINDOW, ComputedQuestion, expand
from onebert_server.answering.rates import Rates
from onebert_server.answering.reading import Question, Reading, read_together
from onebert_server.answering.seen import seen
from onebert_server.answering.tokenizing import Splitter
from onebert_server.engine.engine import Engine
from onebert_server.engine.request import Item
from onebert_server.observed import OTHER
from onebert_server.telemetry.answer_counts import AnswerCounts, Key, Slot
from onebert_server.versions.directory import Directory
from onebert_server.versions.version import Version
from onebert_store.errors import OneBertError

logger = logging.getLogger("onebert.shadows")

# Pairs of labels that are counted one by one for two versions, and pairs of versions whose counts are kept: 25 MB.
MAX_LABELS, MAX_PAIRS = 256, 1024
NO_LABEL = "(none)"

Pair = tuple[Version, Version]
"""A version that answers, and its shadow."""


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


class Shadows:
    """Has shadows compute, and counts; any thread may read the counts."""

    def __init__(self, engine: Engine, rates: Rates, directory: Directory, counts: AnswerCounts) -> None:
        self._engine = engine
        self._rates = rates
        self._directory = directory
        # With each version that answers, its counts with each shadow.
        self._agreements: Slot[dict[Pair, Agreement]] = Slot(counts, MAX_PAIRS)
        self._lock = counts.lock

    def compare(self, question: ComputedQuestion) -> None:
        """Has the shadows of an answered question compute it as well; gives back their pins."""
        live = question._replace(asked=question.asked.of_shadows)
        for version in question.shadows:
            shadow = self._submitted(live, version) if live.request.done() else None
            if shadow is None:
                self._ended(live.version, version, None)
            else:
                shadow.request.add_done_callback(partial(self._computed, live, shadow))

    def agreement(self, version: Version, shadow: Version) -> Agreement:
        """Returns a copy of the counts of two versions."""
        with self._lock:
            counts = (self._agreements.get(_key(version)) or {}).get((version, shadow), Agreement())
            missed = (shadow.missed or {}).get(version.entry.version, 0)
            return replace(counts, labels=counts.labels.copy(), left_out=counts.left_out + missed)

    def pairs(self) -> list[Pair]:
        """Returns the versions and shadows with counts, as long as both exist."""
        with self._lock:
            return [pair for _, pairs in self._agreements.items() for pair in pairs if not _retired(pair)]

    def _submitted(self, live: ComputedQuestion, version: Version) -> ComputedQuestion | None:
        """Submits a shadow's work; nothing that goes wrong with it may reach the request that it follows."""
        try:
            return self._submit(live, version)
        except OneBertError:
            return None
        # Catch everything: the request that it follows is answered already.
        except Exception:
            logger.exception("a question of a shadow is skipped")
            return None

    def _submit(self, live: ComputedQuestion, version: Version) -> ComputedQuestion | None:
        facts = version.facts
        host, pieces = self._engine.hosts[facts.base], live.inputs[facts.base][live.input]
        planned = expand(pieces, version, host.base.tokenizer, live.asked)
        if not planned:
            return None
        tokenizer = host.base.tokenizer.reading(facts.pooling)
        items = [Item(tokenizer.cut(pieces, each.kept), each.slot.number) for each in planned]
        self._rates.check(live.payer)
        request = self._engine.submit_shadow(host, items, own_work("shadow"))
        if request is None:
            return None
        self._rates.count(live.payer, 1, sum(request.lengths))
        return live._replace(version=version, planned=planned, request=request, part=slice(0, None))

    def _computed(self, live: ComputedQuestion, shadow: ComputedQuestion, _: Future[list[Logits]]) -> None:
        """Runs on the thread that ends the shadow's request, and compares both."""
        labels: list[Sequence[str] | None] = [None]
        try:
            labels = [self._labels(live), self._labels(shadow)]
        # Catch everything: the pin must be given back.
        except Exception:
            logger.exception("the answer of a shadow cannot be compared")
        finally:
            self._ended(live.version, shadow.version, None if None in labels else labels)

    def _labels(self, question: ComputedQuestion) -> Sequence[str] | None:
        """Returns the answered labels; None without an answer."""
        request = question.request
        if request.cancelled() or request.exception() is not None:
            return None
        logits, facts, planned = request.result()[question.part], question.version.facts, question.planned
        read = Question("", facts, question.asked, 0, False, [one.kept for one in planned], planned[0].role == WINDOW)
        read = read._replace(pieces=question.inputs[facts.base][question.input])
        base = self._engine.hosts[facts.base].base
        splitters = {facts.base: Splitter(base.tokenizer, base.spec.max_length)}
        flat, sizes = np.concatenate([one.ravel() for one in logits]), np.array([one.size for one in logits], np.int32)
        [reading] = read_together([read], flat, sizes, splitters)
        return seen(facts, reading.answer).labels if isinstance(reading, Reading) else None

    def _ended(self, version: Version, shadow: Version, labels: Sequence[Sequence[str] | None] | None) -> None:
        with self._lock:
            counts = self._agreement(version, shadow)
            if labels is None:
                counts.left_out += 1
            else:
                counts.count(*(of_version or () for of_version in labels))
        self._directory.unpin([(shadow,)])

    def _agreement(self, version: Version, shadow: Version) -> Agreement:
        key, pair = _key(version), (version, shadow)
        pairs = self._agreements.get(key) or {}
        if pair not in pairs:
            pairs = {known: counts for known, counts in pairs.items() if not _retired(known)} | {pair: Agreement()}
            self._agreements.put(key, pairs, len(pairs))
        return pairs[pair]


def _key(version: Version) -> Key:
    return version.entry.task, version.entry.version


def _retired(pair: Pair) -> bool:
    return any(version.retired for version in pair)


def _by_label(live: Sequence[str], shadow: Sequence[str]) -> list[tuple[str, str]]:
    every = dict.fromkeys((*live, *shadow)) or {NO_LABEL: None}
    return [(label if label in live else NO_LABEL, label if label in shadow else NO_LABEL) for label in every]
