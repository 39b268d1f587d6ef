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
from onebert_server.answering.answers import Answerer
from onebert_server.answering.many import Policy, ask_many
from onebert_server.answering.plan import BlankText
from onebert_server.answering.reading import Answered, Reading, Unanswered
from onebert_server.contract.feedback import Recorded
from onebert_server.extensions.feedback.given import Given, label_of
from onebert_server.extensions.feedback.keeping import SampleKeeper
from onebert_server.extensions.feedback.reviews import live_versions
from onebert_server.threads import run_in
from onebert_server.versions.catalog import Catalog
from onebert_store.errors import Forbidden, InvalidInput, NotFound, OneBertError, VersionUnavailable
from onebert_store.registry.names import check_name
from onebert_store.samples.records import Feedback, Kind, Label, Owner, Sample
from onebert_store.samples.store import ReviewerOnly, SampleStore, no_sample


class _Item(NamedTuple):
    """One item with its text, its sample if it has an id, its right label, and the versions that answer.

    `owner` is from before they answer: a text of a keeping that ends meanwhile is not kept.
    """

    sent: Given
    task: str
    owner: Owner
    identifier: str
    text: Text
    sample: Sample | None
    right: Label
    new_labels: tuple[str, ...]
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

    async def record(self, feedback: Sequence[Given], context: Context) -> list[Recorded]:
        """Records all items, or nothing; `live`'s largest share must answer each, its other versions are asked, too.

        Raises:
            Forbidden, TaskNotFound: see `Principal.require`; or a reviewer's feedback would be replaced.
            SampleNotFound: no answer with this id is kept, or not of a task that the principal sees.
            SamplesKeyNeeded: the text of a kept answer cannot be read.
            InvalidInput: a label has another form than the task's answers, or is not one of the task's, whose texts are
                not kept; or a text lacks an identifier, and there is no key to make one.
            OneBertError: a version could not answer; see `Answerer.answer`.
        """
        context.principal.require_scope(Action.GIVE_FEEDBACK)
        items = await run_in(self._registrars, self._resolved, feedback, context)
        answers = await self._answers(items, context)
        rows = await run_in(self._registrars, self._stored, items, answers, context)
        for sent in feedback:
            self._count(sent.kind)
        return rows

    def _resolved(self, feedback: Sequence[Given], context: Context) -> list[_Item]:
        ids, samples = {sent.id for sent in feedback if sent.id is not None}, dict[str, Sample]()
        if ids:
            self._keeper.flush(ids, context.deadline)
            samples = {sample.id: sample for sample in self._store.find(ids, context.principal.sees)}
        items, owner = [], cache(self._store.owner)
        for index, sent in enumerate(feedback):
            with _named(index):
                items.append(self._resolve(sent, samples, owner, context))
        return items

    def _resolve(
        self, sent: Given, samples: dict[str, Sample], owner: Callable[[str], Owner], context: Context
    ) -> _Item:
        sample, text = None, sent.input
        if sent.id is not None:
            if (sample := samples.get(sent.id)) is None:
                raise no_sample()
            text = text_of(*sample.texts)
        task = sample.task if sample is not None else sent.task or ""
        check_name(task)
        versions = live_versions(self._catalog, task, context.principal)
        numbers = [version.entry.version for version in versions]
        facts = [version.known_facts for version in versions if version.known_facts is not None]
        if not facts or text is None:
            raise VersionUnavailable(f"the manifest of {task}@{numbers[0]} cannot be read")
        identifier = sent.identifier or sent.id or self._identifier(text)
        place = owner(task)
        right, new_labels = sent.right(facts, text, self._keeps(place))
        return _Item(sent, task, place, identifier, text, sample, right, new_labels, numbers)

    def _keeps(self, owner: Owner) -> bool:
        return self._store.has_key and owner.keeping is not None

    def _identifier(self, text: Text) -> str:
        if not self._store.has_key:
            raise InvalidInput("feedback on a text takes an identifier, as ONEBERT_SAMPLES_KEY is not set")
        return self._store.identifier(halves_of(text))

    async def _answers(self, items: Sequence[_Item], context: Context) -> list[dict[int, Label]]:
        questions = [(index, number) for index, item in enumerate(items) for number in item.versions]
        refs = [f"{items[index].task}@{number}" for index, number in questions]
        texts = [items[index].text for index, _ in questions]
        try:
            answers = await ask_many(self._answerer, context.of_own_questions, refs, texts, _label, Policy(each=True))
        except BlankText as error:
            raise InvalidInput(f"data.{questions[error.index][0]}: the text {error.RULE}") from None
        labels: list[dict[int, Label]] = [{} for _ in items]
        for (index, number), answer in zip(questions, answers, strict=True):
            if not isinstance(answer, OneBertError):
                labels[index][number] = answer
            elif number == items[index].versions[0]:
                with _named(index):
                    raise answer
        return labels

    def _stored(self, items: Sequence[_Item], answers: Sequence[dict[int, Label]], context: Context) -> list[Recorded]:
        rows = [(item.owner, self._row(item, labels, context)) for item, labels in zip(items, answers, strict=True)]
        try:
            with_texts = self._store.record(rows, context.deadline)
        except ReviewerOnly as error:
            raise Forbidden(
                f"data.{error}: replacing a reviewer's feedback takes a key with the scope review"
            ) from None
        recorded = zip(items, with_texts, strict=True)
        return [Recorded(item.task, item.identifier, has, [*item.new_labels] or None) for item, has in recorded]

    def _row(self, item: _Item, answers: dict[int, Label], context: Context) -> Feedback:
        sent, sample, now = item.sent, item.sample, datetime.now(UTC)
        texts, principal = halves_of(item.text), context.principal
        row = Feedback(item.task, item.identifier, Kind(sent.kind), item.right, answers, now, principal.name)
        row = replace(row, reviewer=principal.may(Action.REVIEW, item.task), new_labels=item.new_labels)
        row = replace(row, text_id=self._store.identifier(texts) if self._store.has_key else None)
        if sample is not None:
            row = replace(row, answer_id=sample.id, version=sample.version, share=sample.share)
        # The texts of a sample are redacted already, which does not harm twice.
        words = [sent.explanation] if sent.explanation else []
        redacted = self._keeper.redacted([*texts, *words]) if self._keeps(item.owner) else None
        if redacted is None:
            return row
        explanation = redacted[-1] if words else None
        return replace(row, texts=redacted[: len(texts)], explanation=explanation)


def _label(_: int, result: Answered | Unanswered) -> Label | OneBertError:
    if isinstance(result, Unanswered):
        return result.error
    return label_of(result.facts, result.reading.answer) if isinstance(result.reading, Reading) else result.reading


@contextmanager
def _named(index: int) -> Iterator[None]:
    """Says in an error which item it is about."""
    try:
        yield
    except (InvalidInput, NotFound) as error:
        raise type(error)(f"data.{index}: {error.detail}") from None
