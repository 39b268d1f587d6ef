"""Has versions answer the texts of a gate and remembers the answers: a gate that ran out of time goes on from there."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256

from onebert_encoder.answering.results import answer_of
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.answering.answers import Answerer
from onebert_server.answering.many import GO_ON, ask_many
from onebert_server.answering.reading import Answered, Reading, Unanswered
from onebert_server.versions.version import Version
from onebert_store.comparison import ShortAnswer
from onebert_store.errors import DeadlineExceeded, OneBertError

# Answers that are remembered, of 32 versions to 2,000 rows: 16 MB.
MAX_REMEMBERED = 2**16


class RowAnswers:
    """Asks versions, each text once; use it from one event loop."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        # By the digests of version and text; the oldest first.
        self._known: OrderedDict[tuple[str, bytes], ShortAnswer] = OrderedDict()

    async def ask(
        self, questions: Sequence[tuple[Version, Text]], context: Context
    ) -> tuple[list[ShortAnswer], Mapping[int, str]]:
        """Returns the answers, None for a missing one, and the reasons by the indexes of these.

        Raises:
            DeadlineExceeded: some are missing; the next call asks for these alone. See `ask_many` for other errors.
        """
        digests = {text: sha256(repr(text).encode()).digest() for text in {text for _, text in questions}}
        keys = [(version.entry.digest, digests[text]) for version, text in questions]
        answers = {key: self._known[key] for key in keys if key in self._known}
        missing, reasons = [index for index, key in enumerate(keys) if key not in answers], dict[int, str]()

        def remember(index: int, answered: Answered | Unanswered) -> None:
            key, answer = keys[missing[index]], _answer(answered)
            if isinstance(answer, OneBertError):
                reasons[missing[index]] = answer.detail
            else:
                answers[key] = self._known[key] = answer

        refs, texts = [ref_of(questions[index][0]) for index in missing], [questions[index][1] for index in missing]
        try:
            await ask_many(self._answerer, context.of_own_questions, refs, texts, remember, GO_ON)
        except DeadlineExceeded:
            known = sum(key in answers for key in keys)
            raise DeadlineExceeded(
                f"the gate has {known:,} of its {len(keys):,} answers and remembers them: move the alias again, "
                "and it goes on, or set a longer X-Request-Timeout"
            ) from None
        finally:
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return [answers.get(key) for key in keys], reasons


def ref_of(version: Version) -> str:
    """Returns the reference to a version."""
    return f"{version.entry.task}@{version.entry.version}"


def _answer(answered: Answered | Unanswered) -> ShortAnswer | OneBertError:
    if isinstance(answered, Unanswered):
        return answered.error
    if not isinstance(answered.reading, Reading):
        return answered.reading
    return answer_of(answered.facts.task_type, answered.reading.answer)
