"""Computed questions: the answers that are read from their logits together, and what is noted of each answer."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.answering.answer import answer, answer_texts
from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.results import Answer, Extraction, Labeling, Prediction
from onebert_encoder.answering.scores import Array, own_activation, thresholds_of
from onebert_encoder.answering.windows import WindowLogits, answer_windows, whole_window, window_of
from onebert_encoder.explaining.words import Explanation
from onebert_encoder.text.tokens import Alignment, Text, halves_of
from onebert_server.access.context import Context
from onebert_server.answering.gateway import Item, Resolved
from onebert_server.answering.plan import Question, Questions
from onebert_server.answering.tokenizing import Splitter, characters_of
from onebert_server.observed import ABSTAINED, OTHER, Kept, Seen
from onebert_server.versions.facts import Facts
from onebert_store.errors import AnswerNotFinite, OneBertError
from onebert_store.file.manifest import WATCHED
from onebert_store.file.reference import MAX_ANSWERED

# Up to `TINY_NUMBERS` logits of a request are read on the event loop, in less than a third of a millisecond. An answer
# costs `ANSWER_IN_NUMBERS` beside its own. A client's format may repeat the text beside each label:
# `CHARACTERS_IN_NUMBER` characters cost one logit.
TINY_NUMBERS, ANSWER_IN_NUMBERS, CHARACTERS_IN_NUMBER = 2048, 16, 128
_FACTS, _LABELS, _TRUNCATED = map(attrgetter, ("facts", "labels", "truncated"))


class Reading(NamedTuple):
    """An answer, and how its input was read.

    Attributes:
        truncated: whether some tokens of the input were left out.
        windows: number of windows; None if the input was not read by windows.
    """

    answer: Answer
    tokens: int
    truncated: bool
    windows: int | None = None


class Answered(NamedTuple):
    """One version's answer to one input, or the reason for none; with its explanation if the request wants one."""

    facts: Facts
    reading: Reading | AnswerNotFinite
    explanation: Explanation | None = None

    def read(self) -> Reading:
        """Returns the reading; raises AnswerNotFinite if the answer is not a finite number."""
        if isinstance(self.reading, Reading):
            return self.reading
        raise self.reading


class Unanswered(NamedTuple):
    """A question without an answer, in a request that accepts partial answers."""

    ref: str
    error: OneBertError


class Unread(NamedTuple):
    """Computed questions, the logits of all their sequences, flat, and the number of these of each sequence."""

    questions: Sequence[Question]
    logits: Array
    sizes: Array

    def part(self, part: slice) -> "Unread":
        questions = self.questions[part]
        low = sum([len(question.cuts) for question in self.questions[: part.start or 0]])
        sequences = slice(low, low + sum([len(question.cuts) for question in questions]))
        ends = np.cumsum(self.sizes)
        start = int(ends[low] - self.sizes[low])
        return Unread(questions, self.logits[start : int(ends[sequences.stop - 1])], self.sizes[sequences])

    def costs(self) -> list[int]:
        """The cost of reading each question and of writing its answer, in logits."""
        firsts = [0, *accumulate([len(question.cuts) for question in self.questions])][:-1]
        numbers = np.add.reduceat(self.sizes, firsts).tolist()
        columns = zip(self.questions, characters_of([question.text for question in self.questions]), strict=True)
        repeated = [len(question.facts.labels) * count // CHARACTERS_IN_NUMBER for question, count in columns]
        return [sum(parts) + ANSWER_IN_NUMBERS for parts in zip(numbers, repeated, strict=True)]


def unread(groups: Sequence[Questions]) -> Unread:
    """Returns all questions of groups with their logits."""
    questions, logits, sizes = list[Question](), list[Array](), list[Array]()
    for group in groups:
        # Blank inputs are not computed.
        if group.logits is not None:
            questions += group.items
            logits.append(group.logits[0])
            sizes.append(group.logits[1])
    if len(logits) == 1:
        return Unread(questions, logits[0], sizes[0])
    return Unread(questions, np.concatenate(logits), np.concatenate(sizes))


def read_together(
    questions: Sequence[Question],
    logits: NDArray[np.float32],
    sizes: NDArray[np.int32],
    splitters: Mapping[str, Splitter],
) -> list[Reading | AnswerNotFinite]:
    """Reads each question as if it were alone, bit for bit, but scores all of one kind at once.

    Args:
        logits: of all sequences of all questions, flat.
        sizes: for each sequence, its number of logits.
        splitters: by the digest of a base; its tokenizer aligns the tokens of a per-token task with the text.
    """
    readings: dict[int, Reading | AnswerNotFinite] = {}
    ends = np.cumsum(sizes)
    starts, stops, finite = (ends - sizes).tolist(), ends.tolist(), bool(np.isfinite(logits).all())
    alike: dict[tuple[object, int], tuple[list[int], list[int]]] = {}
    first = 0
    # No function of our own is called per text: most questions are one sequence of a task on whole texts.
    for number, question in enumerate(questions):
        of_question, first = slice(first, first + len(question.cuts)), first + len(question.cuts)
        start, kind = starts[of_question.start], question.facts.alike
        if not (finite or np.isfinite(logits[start : stops[of_question.stop - 1]]).all()):
            readings[number] = AnswerNotFinite(
                f"the answer of {question.facts.ref} to this input is not a finite number"
            )
        elif question.windows or kind is None:
            parts = [logits[start:stop] for start, stop in zip(starts[of_question], stops[of_question], strict=True)]
            readings[number] = _read_alone(question, parts, splitters[question.facts.base])
        else:
            # The options of one request are one object.
            numbers, places = alike.setdefault((kind, id(question.asked)), ([], []))
            numbers.append(number)
            places.append(start)
    for numbers, places in alike.values():
        texts = [*map(questions.__getitem__, numbers)]
        facts = [*map(_FACTS, texts)]
        rows = logits[np.array(places)[:, None] + np.arange(len(facts[0].labels))]
        truncated = [*map(_TRUNCATED, texts)]
        predictions = answer_texts(rows, facts[0], [*map(_LABELS, facts)], texts[0].asked, truncated)
        for number, text, prediction in zip(numbers, texts, predictions, strict=True):
            readings[number] = Reading(prediction, text.tokens, text.truncated)
    return [*map(readings.__getitem__, range(len(questions)))]


def _read_alone(question: Question, parts: Sequence[NDArray[np.float32]], splitter: Splitter) -> Reading:
    """Reads a question with an answer at places of its text, or with windows."""
    text, facts, asked, tokens, truncated, cuts, windows, pieces = question
    alignments: list[Alignment | None] = [None] * len(cuts)
    if facts.per_token and pieces is not None:
        tokenizer = splitter.tokenizer.reading(facts.pooling)
        alignments = [tokenizer.cut(pieces, cut, align=True).alignment for cut in cuts]
        parts = [part.reshape(-1, len(facts.labels)) for part in parts]
    if not windows:
        return Reading(answer(parts[0], facts, text, alignments[0], asked, truncated), tokens, truncated)
    window = window_of(facts, facts.max_length, asked) or whole_window(facts, facts.max_length)
    each = [WindowLogits(*window) for window in zip(parts, (cut[-1][0] for cut in cuts), alignments, strict=True)]
    return Reading(answer_windows(each, facts, text, window.reduction, asked), tokens, truncated, len(parts))


def note(
    context: Context,
    first: int,
    places: Sequence[int],
    questions: Sequence[Question],
    versions: Sequence[Resolved],
    readings: Iterable[Reading | AnswerNotFinite],
) -> None:
    """Notes answers of a request for metrics and logs, and maybe to be kept; `first` is the number of its place 0."""
    observed = context.observed
    answers, samples, sampled = observed.answers, observed.samples, list[Kept]()
    for place, question, version, reading in zip(places, questions, versions, readings, strict=True):
        # Numbers that are not finite are no answer.
        if not isinstance(reading, Reading):
            continue
        answer, keeping = reading.answer, version.keeping
        observed.tokens += reading.tokens
        observed.truncated += reading.truncated
        observed.abstained += not isinstance(answer, Labeling) and answer.abstained is True
        # Not a secret, so no `secrets`: see `_request_ids`.
        chosen = keeping and samples and random.random() < keeping.share  # noqa: S311
        if answers is None and not chosen:
            continue
        summary = seen(question.facts, answer, question.asked, question.text, question.truncated, reading.windows)
        if answers is not None:
            answers.append(summary)
        if chosen and keeping:
            about = f"{observed.answers_id}/{first + place}", time.time(), context.principal.name
            sampled.append(Kept(*about, halves_of(question.text), kept(answer, summary), keeping))
    if sampled and samples:
        samples(sampled)
        observed.any_kept = True


def seen(
    facts: Facts,
    answer: Answer,
    asked: Asked = PLAIN,
    text: Text = "",
    cut: bool = False,
    windows: int | None = None,
) -> Seen:
    """Returns the parts that are shown, with at most 64 labels; `windows` as in `Reading`."""
    labels: Sequence[str] = ()
    score = None
    if isinstance(answer, Prediction):
        if answer.ranks:
            score = answer.scores[answer.best]
            labels = [answer.names[answer.best]] if answer.labels is None else answer.labels
            labels = [ABSTAINED] if answer.abstained else labels
    elif isinstance(answer, Labeling):
        labels = [entity.label for entity in answer.entities or ()]
    elif isinstance(answer, Extraction):
        score = answer.answers[0].score if answer.answers else None
        labels = [ABSTAINED] if answer.abstained else ()
    # Other scores that a task or a request wants, such as logits, fit no histogram.
    share = score if score is not None and 0 <= score <= 1 else None
    # All further labels count as one more label.
    named = (*labels[:MAX_ANSWERED], OTHER) if len(labels) > MAX_ANSWERED else tuple(labels)
    hashed = None
    if facts.task_type in WATCHED and (asked is PLAIN or _own_rules(facts, asked, windows)):
        # The same in every process, which `hash` is not.
        hashed = crc32((text if isinstance(text, str) else "\0".join(text)).encode(errors="replace"))
    return Seen(facts.task, named, share, facts.version, hashed, cut)


def items_of(facts: Facts, answer: Answer) -> tuple[Item, ...]:
    """Returns the parts that a shadow's answer is compared in: labels of the whole text, or labeled spans."""
    if not isinstance(answer, Labeling):
        return tuple((label, 0, 0) for label in seen(facts, answer).labels)
    spans = answer.words if answer.entities is None else answer.entities
    return tuple((span.label, span.start, span.end) for span in spans)


def kept(answer: Answer, summary: Seen) -> Seen:
    """Returns the parts that are kept beside the text: the number of a regression, too, its first one."""
    return summary._replace(score=answer.score) if isinstance(answer, Prediction) and not answer.ranks else summary


def _own_rules(facts: Facts, asked: Asked, windows: int | None) -> bool:
    """Whether a request's options left the labels and the top score; `top_k` only hides other scores."""
    decision = facts.decision
    # A text in one window is read as without windows.
    if (windows or 1) > 1 and (asked.window is not None or decision is None or decision.window is None):
        return False
    if asked.threshold is not None and not _are_all(asked.threshold, thresholds_of(facts)):
        return False
    if asked.activation is not None and asked.activation != own_activation(facts):
        return False
    # Without thresholds and abstaining, reading the scores alone gives the same label.
    plain = decision is None or (decision.thresholds is None and not decision.abstains)
    return not asked.only_scores or (facts.task_type == "single_label" and plain)


def _are_all(threshold: float, thresholds: Array | None) -> bool:
    return thresholds is not None and bool((thresholds == threshold).all())
