"""Shadows: versions that compute the questions of another one after it has answered, and are compared with it.

A shadow's work is queued beside the engine's queue, and taken while nothing else waits. Each question counts as one
request against the quotas of whoever set the shadow. Questions without room, or without an answer, are left out and
counted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from onebert_encoder.answering.asked import Asked
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context, own_work
from onebert_server.access.principal import EVERY_TASK, OWN_WORK, Principal
from onebert_server.answering.admission import Admission
from onebert_server.answering.answers import Answerer
from onebert_server.answering.gateway import Item, Resolved, ShadowQuestions, Wanted
from onebert_server.answering.reading import Answered, items_of
from onebert_server.engine.block import Block, Ended
from onebert_server.observed import OTHER
from onebert_server.telemetry.counts import AnswerCounts, Key
from onebert_server.versions.directory import Directory
from onebert_server.versions.version import Held, Version
from onebert_store.errors import OneBertError, VersionUnavailable
from onebert_store.registry.grants import Scope
from onebert_store.registry.records import Payer

logger = logging.getLogger("onebert.shadows")

# Pairs of labels that are counted one by one for two versions, and their bytes.
MAX_LABELS, _BYTES = 256, 25_000
NO_LABEL = "(none)"
_CLASSIFIES = frozenset({Scope.CLASSIFY})

Pair = tuple[Version, Version]
"""A version that answers, and its shadow."""


@dataclass
class Agreement:
    """How often two versions answered alike.

    Attributes:
        answers, same: questions that both answered, and those with the same labels, in a token task of the same slices.
        left_out: questions that the shadow did not answer.
        labels: by the label of the version that answered, and the shadow's; of several labels one pair each, with
            NO_LABEL for one that the other version does not answer.
    """

    answers: int = 0
    same: int = 0
    left_out: int = 0
    labels: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, live: Sequence[Item], shadow: Sequence[Item]) -> None:
        self.answers += 1
        self.same += set(live) == set(shadow)
        for pair in _pairs(live, shadow):
            known = pair in self.labels or len(self.labels) < MAX_LABELS
            self.labels[pair if known else (OTHER, OTHER)] += 1


class Agreements(dict[Pair, Agreement]):
    """The counts of a version that answers, with each of its shadows."""


class Shadows:
    """Has shadows compute, and counts; any thread may read the counts."""

    def __init__(self, admission: Admission, workers: Executor, directory: Directory, counts: AnswerCounts) -> None:
        self._answerer = Answerer(admission.splitters, _InIdleTime(admission, directory), workers)
        self._counts = counts
        self._comparing: set[asyncio.Task[None]] = set()

    def compare(self, held: Held, questions: ShadowQuestions) -> None:
        """Has the shadows of a version that has answered questions compute them as well."""
        version, *shadows = held
        for shadow in shadows:
            for text, answer in zip(questions.texts, questions.answers, strict=True):
                comparing = self._compare((version, shadow), held.payer, text, answer, questions.asked)
                task = asyncio.ensure_future(comparing)
                self._comparing.add(task)
                task.add_done_callback(self._comparing.discard)

    def agreement(self, version: Version, shadow: Version) -> Agreement:
        """Returns a copy of the counts of two versions."""
        with self._counts.lock:
            counts = (self._counts.part(_key(version), Agreements) or Agreements()).get((version, shadow), Agreement())
            missed = (shadow.missed or {}).get(version.entry.version, 0)
            return replace(counts, labels=counts.labels.copy(), left_out=counts.left_out + missed)

    def pairs(self) -> list[Pair]:
        """Returns the versions and shadows with counts, as long as both exist."""
        of_versions = self._counts.parts(Agreements)
        return [pair for _, agreements in of_versions for pair in agreements.copy() if not _retired(pair)]

    async def _compare(
        self, pair: Pair, payer: Payer | None, text: Text, answer: Sequence[Item] | None, asked: Asked
    ) -> None:
        """Compares a shadow's answer; nothing that goes wrong may reach the request that it follows."""
        of_shadow: Sequence[Item] | None = None
        try:
            if answer is not None:
                of_shadow = await self._answer(pair[1], payer, text, asked)
        except OneBertError:
            pass
        # Catch everything: the question is counted, whatever becomes of it.
        except Exception:
            logger.exception("a question of a shadow is skipped")
        with self._counts.lock:
            counts = self._agreement(*pair)
            if answer is None or of_shadow is None:
                counts.left_out += 1
            else:
                counts.count(answer, of_shadow)

    async def _answer(self, shadow: Version, payer: Payer | None, text: Text, asked: Asked) -> Sequence[Item]:
        who = OWN_WORK if payer is None else Principal(payer.name, _CLASSIFIES, (EVERY_TASK,), quotas=payer.quotas)

        def items(_: int, answered: Answered) -> Sequence[Item]:
            return items_of(answered.facts, answered.read().answer)

        context, wanted = replace(own_work("shadow"), principal=who), Wanted([shadow.facts.ref], asked=asked)
        [answer] = await self._answerer.answer(context, wanted, [text], items)
        return answer

    def _agreement(self, version: Version, shadow: Version) -> Agreement:
        key, pair = _key(version), (version, shadow)
        agreements = self._counts.part(key, Agreements) or Agreements()
        if pair not in agreements:
            agreements = Agreements({known: counts for known, counts in agreements.items() if not _retired(known)})
            agreements[pair] = Agreement()
            self._counts.put(key, agreements, _BYTES * len(agreements))
        return agreements[pair]


class _InIdleTime:
    """The Gateway of shadows: to versions that are in memory, while nothing else waits."""

    answered: Callable[[Ended], None]

    def __init__(self, admission: Admission, directory: Directory) -> None:
        self._directory = directory
        self._entry = admission.entry(self._ended)
        self.withdraw = self._entry.withdraw

    def refuse_early(self, context: Context) -> None:
        """A shadow refuses no request."""

    async def resolve(self, _: Context, wanted: Wanted) -> list[Resolved | OneBertError]:
        return [self._row(ref) for ref in wanted.refs or ()]

    def submit(self, block: Block) -> None:
        block.requests["waits"] = True
        self._entry.submit(block)

    def shadow(self, questions: ShadowQuestions) -> None:
        """Shadows have no shadows."""

    def _ended(self, ended: Ended) -> None:
        self.answered(ended)

    def _row(self, ref: str) -> Resolved:
        task, _, number = ref.rpartition("@")
        row = self._directory.row_of(self._directory.version(task, int(number)))
        if row is None:
            raise VersionUnavailable("the shadow is not in memory")
        host = self._directory.hosts.index(row.slot.host)
        return Resolved(row.facts, host, row.slot.number, row.generation, lasting=False)


def _key(version: Version) -> Key:
    return version.entry.task, version.entry.version


def _retired(pair: Pair) -> bool:
    return any(version.retired for version in pair)


def _pairs(live: Sequence[Item], shadow: Sequence[Item]) -> list[tuple[str, str]]:
    """The labels of both answers: one pair if each has one of the same slice, else a pair for each label."""
    if len(live) == len(shadow) == 1 and live[0][1:] == shadow[0][1:]:
        return [(live[0][0], shadow[0][0])]
    every = dict.fromkeys((*live, *shadow)) or {(NO_LABEL, 0, 0): None}
    return [(item[0] if item in live else NO_LABEL, item[0] if item in shadow else NO_LABEL) for item in every]
