"""Has versions answer the rows of a gate, and remembers the answers: a gate that ran out of time goes on from there."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onebert_encoder.answering.results import Prediction, ShortAnswer, answer_of
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.answering.answers import Answered, Answerer, Unanswered
from onebert_server.answering.many import GO_ON, ask_many
from onebert_server.answering.plan import Reading
from onebert_server.versions.version import Version
from onebert_store.errors import DeadlineExceeded, InvalidInput, OneBertError

# Versions whose answers are remembered, of one list of rows each: 13 MB.
MAX_REMEMBERED = 64


class Answers(NamedTuple):
    """A version's answers to rows, None where it abstains or has none; `missing` says where it has none first."""

    answers: Sequence[ShortAnswer]
    missing: str | None


class Rows(NamedTuple):
    """Texts that versions shall answer; equal digests are of equal texts, and `name` is what errors call one."""

    name: str
    digest: str
    texts: Sequence[Text]
    versions: Sequence[Version]


class _Question(NamedTuple):
    version: Version
    text: Text
    row: int
    answers: dict[int, ShortAnswer | OneBertError]


class RowAnswers:
    """The answers of versions to rows; use it from one event loop."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        # By the digests of a version and of rows: answers by the row's number. The latest used are last.
        self._known: OrderedDict[tuple[str, str], dict[int, ShortAnswer | OneBertError]] = OrderedDict()

    async def ask(self, lists: Sequence[Rows], context: Context) -> list[list[Answers]]:
        """Returns, for each list, the answers of each version.

        Raises:
            DeadlineExceeded: some are missing; the next call asks for these alone.
            OneBertError: see `ask_many`.
        """
        known = [[self._of(version, rows) for version in rows.versions] for rows in lists]
        # Next to each other, the questions about one text share its computation.
        missing = [
            _Question(version, text, row, answers)
            for rows, of_versions in zip(lists, known, strict=True)
            for row, text in enumerate(rows.texts)
            for version, answers in zip(rows.versions, of_versions, strict=True)
            if row not in answers
        ]

        def remember(index: int, answered: Answered | Unanswered) -> None:
            missing[index].answers[missing[index].row] = _answer(answered)

        refs, texts = [ref_of(question.version) for question in missing], [question.text for question in missing]
        try:
            await ask_many(self._answerer, context.of_own_questions, refs, texts, remember, GO_ON)
        except DeadlineExceeded:
            total = sum(len(rows.texts) * len(rows.versions) for rows in lists)
            left = sum(question.row not in question.answers for question in missing)
            raise DeadlineExceeded(
                f"the gate has {total - left:,} of its {total:,} answers and remembers them: "
                "move the alias again, and it goes on, or set a longer X-Request-Timeout"
            ) from None
        return [
            [_in_order(rows, answers) for answers in of_versions]
            for rows, of_versions in zip(lists, known, strict=True)
        ]

    def _of(self, version: Version, rows: Rows) -> dict[int, ShortAnswer | OneBertError]:
        key = version.entry.digest, rows.digest
        answers = self._known.setdefault(key, {})
        self._known.move_to_end(key)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return answers


def ref_of(version: Version) -> str:
    """Returns the reference to a version."""
    return f"{version.entry.task}@{version.entry.version}"


def _in_order(rows: Rows, answers: Mapping[int, ShortAnswer | OneBertError]) -> Answers:
    ordered = [answers[row] for row in range(len(rows.texts))]
    errors = (f"{rows.name} {n}: {one.detail}" for n, one in enumerate(ordered, 1) if isinstance(one, OneBertError))
    return Answers([None if isinstance(one, OneBertError) else one for one in ordered], next(errors, None))


def _answer(answered: Answered | Unanswered) -> ShortAnswer | OneBertError:
    if isinstance(answered, Unanswered):
        return answered.error
    if not isinstance(answered.reading, Reading):
        return answered.reading
    answer, facts = answered.reading.answer, answered.facts
    if not isinstance(answer, Prediction):
        raise InvalidInput(f"{facts.ref} is a {facts.task_type} task, which has no gate")
    return answer_of(facts.task_type, answer)
