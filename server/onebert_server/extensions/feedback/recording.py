"""Records feedback: every version that `live` means answers the text; all answers stand beside the right label."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple

from onebert_encoder.text.tokens import Text, halves_of, text_of
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.answers import Answered, Answerer, Unanswered
from onebert_server.answering.many import Policy, ask_many
from onebert_server.answering.plan import Reading
from onebert_server.contract.feedback import Recorded
from onebert_server.extensions.feedback.given import Given, label_of
from onebert_server.extensions.feedback.keeping import SampleKeeper
from onebert_server.threads import run_in
from onebert_server.versions.catalog import Catalog
from onebert_store.errors import InvalidInput, NotFound, OneBertError, VersionUnavailable
from onebert_store.registry.names import LIVE, check_name
from onebert_store.samples.records import Feedback, Kind, Label, Owner, Sample
from onebert_store.samples.store import SampleStore, no_sample


class _Asked(NamedTuple):
    """One item with its text, its sample if it has an id, its right label, and the versions that answer.

    `owner` is from before they answer: a text of a keeping that ends meanwhile is not kept.
    """

    given: Given
    task: str
    owner: Owner
    identifier: str
    text: Text
    sample: Sample | None
    right: Label
    versions: Sequence[int]


class Recorder:
    """Records feedback on answers and texts; `registrars` are the threads for the store."""

    def __init__(
        self,
        store: SampleStore,
        keeper: SampleKeeper,
        catalog: Catalog,
        answerer: Answerer,
        registrars: Executor,
        count: Callable[[str], None],
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._catalog = catalog
        self._answerer = answerer
        self._registrars = registrars
        self._count = count

    async def record(self, given: Sequence[Given], context: Context) -> list[Recorded]:
        """Records all items, or nothing; `live`'s largest share must answer each, its other versions are asked, too.

        Raises:
            Forbidden, TaskNotFound: see `Principal.require`.
            SampleNotFound: no answer with this id is kept, or not of a task that the principal sees.
            SamplesKeyNeeded: the text of a kept answer cannot be read.
            InvalidInput: a label is not one of the task's, or has another form than its answers; or a text lacks an
                identifier, and there is no key to make one.
            OneBertError: a version could not answer; see `Answerer.answer_each`.
        """
        context.principal.require_scope(Action.GIVE_FEEDBACK)
        asked = await run_in(self._registrars, self._resolved, given, context)
        answers = await self._answers(asked, context)
        rows = await run_in(self._registrars, self._stored, asked, answers, context)
        for one in given:
            self._count(one.kind)
        return rows

    def _resolved(self, given: Sequence[Given], context: Context) -> list[_Asked]:
        ids, found = {one.id for one in given if one.id is not None}, list[Sample]()
        if ids:
            self._keeper.flush(ids)
            found = self._store.find(ids, context.principal.sees)
        samples = {one.id: one for one in found}
        made, owner = [], cache(self._store.owner)
        for index, one in enumerate(given):
            with _named(index):
                made.append(self._resolve(one, samples, owner, context))
        return made

    def _resolve(
        self, given: Given, samples: dict[str, Sample], owner: Callable[[str], Owner], context: Context
    ) -> _Asked:
        sample, text = None, given.input
        if given.id is not None:
            if (sample := samples.get(given.id)) is None:
                raise no_sample()
            text = text_of(*sample.texts)
        task = sample.task if sample is not None else given.task or ""
        check_name(task)
        directory, who = self._catalog.directory, context.principal
        target = directory.task(task, limit=0, who=who).alias(LIVE).target
        # The largest share comes first.
        numbers = sorted(target.numbers, key=lambda number: number != target.version)
        versions = [directory.version(task, number, who) for number in numbers]
        self._catalog.learn_all(versions)
        facts = [one.known_facts for one in versions if one.known_facts is not None]
        if not facts or text is None:
            raise VersionUnavailable(f"the manifest of {task}@{numbers[0]} cannot be read")
        identifier = given.identifier or given.id or self._identifier(text)
        return _Asked(given, task, owner(task), identifier, text, sample, given.right(facts), numbers)

    def _identifier(self, text: Text) -> str:
        if not self._store.has_key:
            raise InvalidInput("feedback on a text takes an identifier, as ONEBERT_SAMPLES_KEY is not set")
        return self._store.identifier(halves_of(text))

    async def _answers(self, asked: Sequence[_Asked], context: Context) -> list[dict[int, Label]]:
        each = [(index, number) for index, one in enumerate(asked) for number in one.versions]
        refs = [f"{asked[index].task}@{number}" for index, number in each]
        texts = [asked[index].text for index, _ in each]
        answers = await ask_many(self._answerer, context.of_own_questions, refs, texts, _label, Policy(each=True))
        found: list[dict[int, Label]] = [{} for _ in asked]
        for (index, number), answer in zip(each, answers, strict=True):
            if not isinstance(answer, OneBertError):
                found[index][number] = answer
            elif number == asked[index].versions[0]:
                with _named(index):
                    raise answer
        return found

    def _stored(self, asked: Sequence[_Asked], answers: Sequence[dict[int, Label]], context: Context) -> list[Recorded]:
        rows = [(one.owner, self._row(one, found, context)) for one, found in zip(asked, answers, strict=True)]
        kept = self._store.record(rows)
        return [Recorded(one.task, one.identifier, has) for one, has in zip(asked, kept, strict=True)]

    def _row(self, one: _Asked, answers: dict[int, Label], context: Context) -> Feedback:
        given, sample, now = one.given, one.sample, datetime.now(UTC)
        texts, by = halves_of(one.text), (now, context.principal.name)
        row = Feedback(one.task, one.identifier, Kind(given.kind), one.right, answers, *by)
        if sample is not None:
            row = replace(row, answer_id=sample.id, version=sample.version, share=sample.share)
        # The texts of a sample are redacted already, which does not harm twice.
        words = [given.explanation] if given.explanation else []
        keeps = self._store.has_key and one.owner.keeping is not None
        redacted = self._keeper.redacted([*texts, *words]) if keeps else None
        if redacted is None:
            return row
        explanation = redacted[-1] if words else None
        since = sample.at if sample is not None else now
        return replace(row, texts=redacted[: len(texts)], texts_at=since, explanation=explanation)


def _label(_: int, one: Answered | Unanswered) -> Label | OneBertError:
    if isinstance(one, Unanswered):
        return one.error
    return label_of(one.facts, one.reading.answer) if isinstance(one.reading, Reading) else one.reading


@contextmanager
def _named(index: int) -> Iterator[None]:
    """Says in an error which item it is about."""
    try:
        yield
    except (InvalidInput, NotFound) as error:
        raise type(error)(f"data.{index}: {error.detail}") from None
