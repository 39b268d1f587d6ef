"""From logits to answers: what each task type reads out of them, and what it may be asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from onebert_encoder.text.tokens import Alignment, Text
from onebert_store.file.manifest import TaskType

Array = np.ndarray[Any, np.dtype[Any]]
Logits = np.ndarray[Any, np.dtype[np.float32]]
"""Of one sequence: [labels], or [tokens, labels] for a per-token task."""

MULTI_LABEL_THRESHOLD = 0.5
MAX_ANSWER_TOKENS = 30
"""Longest answer of a span task, as is usual with SQuAD."""
MAX_ANSWERS = 20
"""Most answers of a span task: a context has thousands of spans, and one request may ask a thousand tasks."""


@dataclass(frozen=True)
class Prediction:
    """The answer of a task on whole texts.

    Attributes:
        label: the most likely label; for a regression the name of the first output.
        score: its probability; for a regression the value.
        scores: label -> probability or value, highest first (a regression keeps its own order).
        labels: the labels over the threshold of a multi-label task, else None.
    """

    label: str
    score: float
    scores: dict[str, float]
    labels: list[str] | None = None


@dataclass(frozen=True)
class Labeled:
    """A stretch of the text, `text[start:end]` in code points, with its label and that label's probability."""

    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True)
class Labeling:
    """The answer of a token task.

    Attributes:
        words: every word of the text; the first token of a word decides.
        entities: where the labels are BIO, the words joined to entities, each with the mean of its words' scores.
    """

    words: list[Labeled]
    entities: list[Labeled] | None


@dataclass(frozen=True)
class FoundSpan:
    """An answer found in the context, `context[start:end]` in code points, with its probability."""

    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True)
class Extraction:
    """The answer of a span task: the best spans of the context, best first; none where it has no words."""

    answers: list[FoundSpan]


Answer = Prediction | Labeling | Extraction


class Outputs(Protocol):
    """What `answer` must know of a task; a manifest has it."""

    @property
    def task_type(self) -> TaskType: ...  # noqa: D102

    @property
    def labels(self) -> Sequence[str]: ...  # noqa: D102


@dataclass(frozen=True)
class RawAnswer:
    """Logits, and what it takes to read an answer from them.

    Attributes:
        logits: [labels], or [tokens, labels] for a per-token task; float64.
        labels: names of the outputs.
        text: the input text or pair.
        alignment: where the text's tokens lie; None unless the task is per token.
        top_k: how many scores or spans to give; None is the task type's own default.
    """

    logits: Array
    labels: Sequence[str]
    text: Text
    alignment: Alignment | None
    top_k: int | None

    @property
    def aligned(self) -> Alignment:
        """The alignment, which a per-token task must have.

        Raises:
            ValueError: there is none.
        """
        if self.alignment is None:
            raise ValueError("a per-token task is answered with the alignment of its tokens")
        return self.alignment


def answer(
    logits: Array, outputs: Outputs, text: Text = "", alignment: Alignment | None = None, top_k: int | None = None
) -> Answer:
    """Turns logits into an answer, by task type.

    Args:
        logits: [labels] float32, or [tokens, labels] for a per-token task.
        outputs: the task type and the names of the outputs, such as a manifest.
        text: the input text or pair; only per-token tasks read it and `alignment`.
        alignment: where each token lies in the text.
        top_k: how many entries `scores` keeps (None: all), or how many spans are given (None: 1; at most
            `MAX_ANSWERS`); a token task always gives all words.

    Raises:
        ValueError: a per-token task without an alignment.
    """
    raw = RawAnswer(logits.astype(np.float64), outputs.labels, text, alignment, top_k)
    return TASK_TYPES[outputs.task_type].answer(raw)


def is_bio(labels: Sequence[str]) -> bool:
    """Whether labels mark entities: O, B-x and I-x."""
    kinds = [label[:2] for label in labels if label != "O"]
    return "O" in labels and "B-" in kinds and all(kind in ("B-", "I-") for kind in kinds)


def label_scores(logits: Array, task_type: TaskType) -> Array:
    """Probabilities of the labels, or the values of a regression, for any number of whole texts.

    Args:
        logits: [..., labels] float32.
        task_type: of a task that answers for whole texts.

    Returns:
        [..., labels] float64.
    """
    return _SCORES[task_type](logits.astype(np.float64))


def _single_label(raw: RawAnswer) -> Prediction:
    return _ranked(_softmax(raw.logits), raw)


def _multi_label(raw: RawAnswer) -> Prediction:
    scores = _sigmoid(raw.logits)
    found = _ranked(scores, raw)
    order = np.argsort(-scores, kind="stable").tolist()
    labels = [raw.labels[i] for i in order if scores[i] > MULTI_LABEL_THRESHOLD]
    return Prediction(found.label, found.score, found.scores, labels)


def _regression(raw: RawAnswer) -> Prediction:
    scores = dict(zip(raw.labels, raw.logits.tolist(), strict=True))
    return Prediction(raw.labels[0], scores[raw.labels[0]], scores)


def _ranked(scores: Array, raw: RawAnswer) -> Prediction:
    order = np.argsort(-scores, kind="stable").tolist()
    best = {raw.labels[i]: float(scores[i]) for i in order[: raw.top_k]}
    return Prediction(raw.labels[order[0]], float(scores[order[0]]), best)


def _token(raw: RawAnswer) -> Labeling:
    starts, spans = _words(raw.aligned)
    scores = _softmax(raw.logits[starts])
    best = scores.argmax(axis=-1)
    words = [
        Labeled(start, end, raw.labels[label], score)
        for (start, end), label, score in zip(spans, best.tolist(), scores.max(axis=-1).tolist(), strict=True)
    ]
    return Labeling(words, _entities(words) if is_bio(raw.labels) else None)


def _words(alignment: Alignment) -> tuple[list[int], list[tuple[int, int]]]:
    """The first token and the span of every word; special tokens and whitespace are no words."""
    starts, spans = [], []
    seen = [i for i, (start, end) in enumerate(alignment.offsets) if start < end]
    for _, group in groupby(seen, key=lambda i: (alignment.sequences[i], alignment.words[i])):
        tokens = list(group)
        starts.append(tokens[0])
        spans.append((alignment.offsets[tokens[0]][0], alignment.offsets[tokens[-1]][1]))
    return starts, spans


def _entities(words: Sequence[Labeled]) -> list[Labeled]:
    """Joins words as seqeval's default mode does: an I-x that does not follow a B-x or I-x begins an entity."""
    found: list[list[Labeled]] = []
    before = "O"
    for word in words:
        if word.label != "O":
            continues = word.label[0] == "I" and before != "O" and before[2:] == word.label[2:]
            if continues:
                found[-1].append(word)
            else:
                found.append([word])
        before = word.label
    return [
        Labeled(one[0].start, one[-1].end, one[0].label[2:], sum(word.score for word in one) / len(one))
        for one in found
    ]


def _span(raw: RawAnswer) -> Extraction:
    alignment, context = raw.aligned, raw.text[1]
    inside = np.array([i for i, half in enumerate(alignment.sequences) if half == 1], dtype=np.int64)
    if not len(inside):
        return Extraction([])
    start, end = _log_softmax(raw.logits[inside].T)
    # scores[i, n] is the log-probability of the span from token i to token i + n.
    longest = min(MAX_ANSWER_TOKENS, len(inside))
    ends = np.lib.stride_tricks.sliding_window_view(np.pad(end, (0, longest - 1), constant_values=-np.inf), longest)
    scores = start[:, None] + ends
    answers: dict[tuple[int, int], FoundSpan] = {}
    wanted = min(raw.top_k or 1, MAX_ANSWERS)
    for index in np.argsort(-scores, axis=None, kind="stable").tolist():
        first, more = divmod(index, longest)
        if len(answers) == wanted or np.isneginf(scores[first, more]):
            break
        (a, a_end), (b_start, b) = alignment.offsets[inside[first]], alignment.offsets[inside[first + more]]
        # Tokens that are bytes of one character give the same span: the first, which is the best, is kept. A token of
        # whitespace, whose offsets are empty, neither begins nor ends an answer.
        if a < a_end and b_start < b and (a, b) not in answers:
            answers[a, b] = FoundSpan(a, b, context[a:b], float(np.exp(scores[first, more])))
    return Extraction(list(answers.values()))


def _softmax(logits: Array) -> Array:
    probabilities: Array = np.exp(_log_softmax(logits))
    return probabilities


def _sigmoid(logits: Array) -> Array:
    probabilities: Array = 0.5 * (1.0 + np.tanh(0.5 * logits))
    return probabilities


def _log_softmax(logits: Array) -> Array:
    """Logarithm of the softmax over the last dimension."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    logarithms: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logarithms


_SCORES: Mapping[TaskType, Callable[[Array], Array]] = {
    "single_label": _softmax,
    "multi_label": _sigmoid,
    "regression": lambda values: values,
}


@dataclass(frozen=True)
class TaskKind:
    """What a task type may be asked and how it answers.

    Attributes:
        answer: makes the answer.
        takes_text: whether one text is an input.
        takes_pair: whether a pair of texts is an input.
        question: what the input must be, as error messages say it.
    """

    answer: Callable[[RawAnswer], Answer]
    takes_text: bool = True
    takes_pair: bool = True
    question: str = "a text or a pair of texts"

    def takes(self, pair: bool) -> bool:
        """Whether the task type takes a pair of texts, or, where `pair` is False, one text."""
        return self.takes_pair if pair else self.takes_text


TASK_TYPES: Mapping[TaskType, TaskKind] = {
    "single_label": TaskKind(_single_label),
    "multi_label": TaskKind(_multi_label),
    "regression": TaskKind(_regression),
    "token": TaskKind(_token, takes_pair=False, question="one text"),
    "span": TaskKind(_span, takes_text=False, question="a question as text and its context as text_pair"),
}
