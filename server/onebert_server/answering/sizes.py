"""How large an answer may be: bounded before anything is computed, and again while it is written."""

from collections.abc import Sequence

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.stretches import MAX_ANSWERS
from onebert_server.limits import MAX_ANSWER_BYTES, MAX_LOGITS, MAX_SEQUENCES
from onebert_server.versions.facts import Facts
from onebert_store.errors import TooLarge

# Bytes in JSON: of a word or a span beside its label or text, of all that a result says besides, and of the text of a
# span (30 tokens; where they are longer the finished answer is measured again).
_STRETCH, _RESULT, _SPAN_TEXT = 80, 512, 256

_TOO_MANY_BYTES = "the answers would be over {} bytes; send the request in parts, or a lower top_k"


class AnswerSize:
    """Adds up what the answers of one request will take; `add` refuses before it is too much."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._sequences = self._numbers = self._bytes = 0
        self._labels_of: set[str] = set()

    def add(self, facts: Facts, lengths: Sequence[int]) -> None:
        """Counts one answer that is made of sequences of so many tokens.

        Raises:
            TooLarge: with it the request would be answered with too much.
        """
        tokens = sum(lengths) if facts.per_token else len(lengths)
        sequences = self._sequences + len(lengths)
        numbers = self._numbers + len(facts.labels) * tokens
        size = self._bytes + _answer_bytes(facts, tokens, self._asked)
        # All labels of a version are sent to a front end that does not know them, however few the answer shows.
        if facts.ref not in self._labels_of:
            size += facts.label_bytes
        if sequences > MAX_SEQUENCES:
            raise TooLarge(
                f"the texts would be read in over {MAX_SEQUENCES} sequences; send the request in parts, or shorter ones"
            )
        if numbers > MAX_LOGITS:
            raise TooLarge("the answers would hold too many numbers, tokens by labels; send the request in parts")
        if size > MAX_ANSWER_BYTES:
            raise TooLarge(_TOO_MANY_BYTES.format(MAX_ANSWER_BYTES))
        # Only what is answered counts: of several questions one may be refused for itself.
        self._sequences, self._numbers, self._bytes = sequences, numbers, size
        self._labels_of.add(facts.ref)


class AnswerTooLarge(TooLarge):
    """The parts of one answer are too much together."""


class AnswerBytes:
    """Adds up the parts of one answer while they are written; `add` refuses before they are too much together."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, part: bytes) -> bytes:
        """The part, which is counted.

        Raises:
            AnswerTooLarge: with it the answer would be over `MAX_ANSWER_BYTES`.
        """
        self.require(len(part))
        self._bytes += len(part)
        return part

    def require(self, size: int) -> None:
        """Refuses a part of so many bytes before it is made.

        Raises:
            AnswerTooLarge: see `add`.
        """
        if self._bytes + size > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(_TOO_MANY_BYTES.format(MAX_ANSWER_BYTES))


def _answer_bytes(facts: Facts, tokens: int, asked: Asked) -> int:
    """About the most that one answer takes as JSON."""
    top_k, wording = asked.top_k, asked.wording
    if facts.task_type == "token":
        # A token may appear twice in the answer: among the words, and among the entities.
        return _RESULT + 2 * tokens * (_STRETCH + facts.longest_label_bytes)
    if facts.task_type == "span":
        return _RESULT + min(top_k or 1, MAX_ANSWERS) * (_STRETCH + _SPAN_TEXT)
    shown = len(facts.labels) if top_k is None else min(top_k, len(facts.labels))
    scores = shown * wording.beside + wording.names * min(facts.label_bytes, shown * facts.longest_label_bytes)
    # Every label over its threshold is listed, too, whatever `top_k` is.
    selects = facts.task_type == "multi_label" or asked.threshold is not None
    selects = selects or (facts.decision is not None and facts.decision.thresholds is not None)
    return _RESULT + scores + (facts.label_bytes if selects and wording.names and not asked.only_scores else 0)
