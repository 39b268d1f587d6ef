"""The review queue of a task: kept texts that lack a label, answered anew by its versions, the most wanted first."""

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from onebert_encoder.answering.answer import kind_of
from onebert_encoder.answering.results import Labeling, Prediction
from onebert_encoder.text.tokens import text_of
from onebert_server.access.context import Context
from onebert_server.access.principal import Action, Principal
from onebert_server.answering.answers import Answerer
from onebert_server.answering.many import Policy, ask_many
from onebert_server.answering.reading import Answered, Reading, Unanswered
from onebert_server.contract.review import Order
from onebert_server.extensions.feedback.given import new_labels
from onebert_server.extensions.feedback.ranking import ScoredText, ranked
from onebert_server.threads import run_in
from onebert_server.versions.catalog import Catalog
from onebert_server.versions.facts import Facts
from onebert_server.versions.version import Version
from onebert_store.errors import InvalidInput, VersionUnavailable
from onebert_store.registry.names import LIVE
from onebert_store.samples.records import Feedback, Sample
from onebert_store.samples.store import SampleStore

# The latest texts that a queue is chosen from, and their answers: ten seconds of a base of twelve layers on a CPU.
MAX_COMPARED, MAX_ANSWERS = 1000, 2048


class QueuedTexts(NamedTuple):
    """The chosen samples with the answers of all versions, and the number of samples that they are chosen from."""

    facts: Facts
    compared: int
    chosen: Sequence[tuple[Sample, Sequence[ScoredText]]]


class Reviews:
    """Reads kept answers and feedback for people: `queue` in threads of `registrars`, the other methods block."""

    def __init__(self, store: SampleStore, catalog: Catalog, answerer: Answerer, registrars: Executor) -> None:
        self._store = store
        self._catalog = catalog
        self._answerer = answerer
        self._registrars = registrars

    async def queue(self, task: str, by: Order, limit: int, context: Context) -> QueuedTexts:
        """Chooses the texts to label next among all that half of the request's time suffices for.

        Raises:
            Forbidden, TaskNotFound: see `Principal.require`.
            AliasNotFound: the task has no live version.
            InvalidInput: the task's type has no queue.
            SamplesKeyNeeded: a text cannot be read.
            OneBertError: a version could not answer; see `Answerer.answer`.
        """
        versions = await run_in(self._registrars, self._versions, task, context)
        read = min(MAX_COMPARED, MAX_ANSWERS // len(versions))
        samples = await run_in(self._registrars, self._store.without_feedback, task, read)
        samples = [
            sample for sample in samples if all(kind_of(facts).takes(len(sample.texts) == 2) for facts in versions)
        ]
        answered = await self._answered(versions, samples, context)
        order = ranked(by, [answers for _, answers in answered])[:limit]
        return QueuedTexts(versions[0], len(answered), [answered[index] for index in order])

    def samples(
        self, task: str, after: str, limit: int, context: Context
    ) -> tuple[list[tuple[Sample, Feedback | None]], str | None, Facts | None]:
        """Returns a page of kept answers with the latest feedback on each; see `feedback`."""
        self._require(task, context)
        return *self._store.page(task, after, limit), self._newest(task)

    def feedback(
        self, task: str, after: str, limit: int, context: Context
    ) -> tuple[list[Feedback], str | None, Facts | None]:
        """Returns a page of the feedback whose text is kept, `after` of the next, and the newest version's facts.

        Raises Forbidden, TaskNotFound.
        """
        self._require(task, context)
        return *self._store.feedback_page(task, after, limit), self._newest(task)

    def new_labels(self, task: str) -> dict[str, int]:
        """Counts the rows of feedback by the labels that the newest version lacks."""
        return new_labels(self._store, task, self._newest(task))

    def _newest(self, task: str) -> Facts | None:
        versions = self._catalog.directory.task(task).versions
        version = versions[max(versions)]
        self._catalog.manifests.learn(version)
        return version.known_facts

    def _require(self, task: str, context: Context) -> None:
        context.principal.require(Action.REVIEW, task)
        self._catalog.directory.task(task, limit=0, who=context.principal)

    def _versions(self, task: str, context: Context) -> list[Facts]:
        """Returns the versions that answer, the one with the largest share first."""
        self._require(task, context)
        versions = live_versions(self._catalog, task, context.principal)
        facts = [version.known_facts for version in versions if version.known_facts is not None]
        if len(facts) < len(versions):
            raise VersionUnavailable(f"a manifest of {task} cannot be read")
        kinds = {manifest.task_type for manifest in facts}
        if not kinds.isdisjoint(("span", "regression")) or len(kinds) > 1:
            raise InvalidInput(f"{task} is a {' and '.join(sorted(kinds))} task, which has no queue")
        return facts

    async def _answered(
        self, versions: Sequence[Facts], samples: Sequence[Sample], context: Context
    ) -> list[tuple[Sample, Sequence[ScoredText]]]:
        refs = [facts.ref for _ in samples for facts in versions]
        texts = [text_of(*sample.texts) for sample in samples for _ in versions]
        policy = Policy(goes_on=True, until=(time.monotonic() + context.deadline) / 2)
        answers = await ask_many(self._answerer, context.of_own_questions, refs, texts, _scored, policy)
        rows = (answers[at : at + len(versions)] for at in range(0, len(answers), len(versions)))
        scored = ((sample, [answer for answer in row if answer]) for sample, row in zip(samples, rows, strict=False))
        return [(sample, row) for sample, row in scored if len(row) == len(versions)]


def live_versions(catalog: Catalog, task: str, who: Principal) -> list[Version]:
    """Returns the versions that `live` means, the one with the largest share first; reads their manifests."""
    target = catalog.directory.task(task, limit=0, who=who).alias(LIVE).target
    numbers = sorted(target.numbers, key=lambda number: number != target.version)
    versions = [catalog.directory.version(task, number, who) for number in numbers]
    catalog.manifests.learn_all(versions)
    return versions


def _scored(_: int, result: Answered | Unanswered) -> ScoredText | None:
    """Returns the answer; None if there is none, which must not keep all other texts from being labeled."""
    if isinstance(result, Unanswered) or not isinstance(result.reading, Reading):
        return None
    prediction = result.reading.answer
    if not isinstance(prediction, Prediction | Labeling):
        raise InvalidInput(f"the answers of {result.facts.ref} have no scores of labels")
    return ScoredText(result.facts, prediction)
