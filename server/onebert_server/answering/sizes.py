"""Bounds the size of answers: before anything is computed, and again while they are written."""

from collections.abc import Mapping
from typing import NamedTuple

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.stretches import MAX_ANSWERS
from onebert_server.limits import MAX_ANSWER_BYTES, MAX_LOGITS, MAX_SEQUENCES
from onebert_server.versions.facts import Facts
from onebert_store.errors import TooLarge

# Bytes in JSON: of a word or a span beside its label or text, of the other fields of a result, and of a span's text (30
# tokens; if it is longer, the finished answer is measured again).
_STRETCH, _RESULT, _SPAN_TEXT = 80, 512, 256

_TOO_MANY_BYTES = "the answers would be over {} bytes; send the request in parts, or a lower top_k"


class Sized(NamedTuple):
    """Sequences, numbers and bytes of answers, and the bytes of all labels of each version that answers."""

    sequences: int
    numbers: int
    size: int
    labels: Mapping[str, int]


def counted(facts: Facts, sizes: tuple[int, int], sequences: int, tokens: int, answers: int = 1) -> Sized:
    """Counts answers of a version from sequences of so many tokens together; `sizes`: see `answer_bytes`."""
    count = tokens if facts.per_token else sequences
    size = answers * sizes[0] + count * sizes[1]
    return Sized(sequences, len(facts.labels) * count, size, {facts.ref: facts.label_bytes})


class AnswerSize:
    """Adds up the size of one request's answers; `add` refuses before a bound is exceeded."""

    _sequences = _numbers = _bytes = 0
    _labels_of: frozenset[str] = frozenset()

    def add(self, answers: Sized) -> None:
        """Counts answers; raises TooLarge, and counts nothing, if a bound would be exceeded."""
        sequences, numbers = self._sequences + answers.sequences, self._numbers + answers.numbers
        # A front end that does not know a version gets all of its labels, even if the answer shows few.
        unknown = answers.labels.keys() - self._labels_of
        size = self._bytes + answers.size + sum(map(answers.labels.__getitem__, unknown))
        if sequences > MAX_SEQUENCES:
            raise TooLarge(
                f"the texts would be read in over {MAX_SEQUENCES} sequences; send the request in parts, or shorter ones"
            )
        if numbers > MAX_LOGITS:
            raise TooLarge("the answers would hold too many numbers, tokens by labels; send the request in parts")
        if size > MAX_ANSWER_BYTES:
            raise TooLarge(_TOO_MANY_BYTES.format(MAX_ANSWER_BYTES))
        # Count accepted answers only: one question of several may be refused on its own.
        self._sequences, self._numbers, self._bytes = sequences, numbers, size
        self._labels_of |= unknown


class AnswerTooLarge(TooLarge):
    """The parts of one answer are too large together."""


class AnswerBytes:
    """Adds up the parts of one answer while they are written; refuses before they are too large together."""

    def __init__(self) -> None:
        self.left = MAX_ANSWER_BYTES

    def add(self, part: bytes) -> bytes:
        """Counts a part and returns it; raises AnswerTooLarge above `MAX_ANSWER_BYTES`."""
        self.left -= len(part)
        if self.left < 0:
            self.require(0)
        return part

    def require(self, size: int) -> None:
        """Raises AnswerTooLarge if a part of so many bytes, not made yet, would exceed the bound."""
        if size > self.left:
            raise AnswerTooLarge(_TOO_MANY_BYTES.format(MAX_ANSWER_BYTES))


def answer_bytes(facts: Facts, asked: Asked) -> tuple[int, int]:
    """Returns the bytes of an answer, and of each of its tokens if there are answers for tokens."""
    top_k, wording = asked.top_k, asked.wording
    if facts.task_type == "token":
        # A token may appear twice in the answer: among the words, and among the entities.
        return _RESULT, 2 * (_STRETCH + facts.longest_label_bytes)
    if facts.task_type == "span":
        return _RESULT + min(top_k or 1, MAX_ANSWERS) * (_STRETCH + _SPAN_TEXT), 0
    shown = len(facts.labels) if top_k is None else min(top_k, len(facts.labels))
    scores = shown * wording.beside + wording.names * min(facts.label_bytes, shown * facts.longest_label_bytes)
    # Labels over their threshold are listed, too, for any `top_k`.
    selects = facts.task_type == "multi_label" or asked.threshold is not None
    selects = selects or (facts.decision is not None and facts.decision.thresholds is not None)
    listed = facts.label_bytes if selects and wording.names and not asked.only_scores else 0
    return _RESULT + scores + listed, 0
