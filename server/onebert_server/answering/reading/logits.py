"""Computed questions: their logits, and the answers that are read from them together, whichever process computed."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter, itemgetter, mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.answering.answer import answer, answer_texts
from onebert_encoder.answering.results import Answer
from onebert_encoder.answering.scores import Array
from onebert_encoder.answering.windows import WindowLogits, answer_windows, whole_window, window_of
from onebert_encoder.text.tokens import Alignment
from onebert_server.answering.plan import Question, Questions, Rules
from onebert_server.answering.resolution import Resolved
from onebert_server.answering.tokenizing import Splitter, characters_of
from onebert_server.engine.block import Ended
from onebert_store.errors import AnswerNotFinite

# Up to `TINY_NUMBERS` logits of a request are read on the event loop, in less than a third of a millisecond. An answer
# costs `ANSWER_IN_NUMBERS` beside its own. A client's format may repeat the text beside each label:
# `_CHARACTERS_IN_NUMBER` characters cost one logit.
TINY_NUMBERS, ANSWER_IN_NUMBERS, _CHARACTERS_IN_NUMBER = 2048, 16, 128
_FACTS, _LABELS, _TRUNCATED = map(attrgetter, ("facts", "labels", "truncated"))
_LABEL_COUNT = itemgetter(Rules._fields.index("labels"))


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


class Results:
    """Computed questions: their logits and, unless that is too much for the event loop, their answers.

    Attributes:
        items: the questions.
        versions, places: the version that answered each question, and the question's number in its request.
        sizes, logits: of each sequence the number of its logits, and these, in arrays one after another.
        cost: of reading them and of writing them in a client's format, in logits.
        readings: the answers; None until they are read.
    """

    items: Sequence[Question] = ()
    versions: Sequence[Resolved] = ()
    places: Sequence[int] = ()
    sizes: Sequence[Array] = ()
    logits: Sequence[Array] = ()
    cost = 0
    readings: Sequence[Reading | AnswerNotFinite] | None = ()

    def add(self, questions: Sequence[Questions], ended: Ended, first: int, stops: Sequence[int]) -> None:
        """Adds the logits of questions, whose sequences follow the `first` one; `stops`: of each one's logits."""
        for group in questions:
            self.readings = None
            items = group.items
            last = first + len(group.ids)
            sizes, logits = ended.outputs[first:last], ended.logits[stops[first] : stops[last]]
            group.computed, first = (logits, sizes), last
            self.items = [*self.items, *items]
            self.versions = [*self.versions, *group.versions]
            self.places = [*self.places, *group.numbers]
            self.sizes, self.logits = [*self.sizes, sizes], [*self.logits, logits]
            labels = map(_LABEL_COUNT, group.rules)
            repeated = sum(map(mul, labels, map(characters_of if group.in_pieces else len, group.texts)))
            self.cost += logits.size + ANSWER_IN_NUMBERS * len(items) + repeated // _CHARACTERS_IN_NUMBER

    def whole(self) -> tuple[Sequence[Question], Array, Array]:
        """The questions, the logits of all their sequences, and the number of these of each."""
        if len(self.logits) > 1:
            self.logits, self.sizes = [np.concatenate(self.logits)], [np.concatenate(self.sizes)]
        return self.items, self.logits[0], self.sizes[0]

    def part(self, part: slice) -> tuple[Sequence[Question], Array, Array]:
        """Returns a part of `whole`."""
        items, (_, logits, sizes) = self.items[part], self.whole()
        low = sum([len(item.cuts) for item in self.items[: part.start or 0]])
        sequences = slice(low, low + sum([len(item.cuts) for item in items]))
        ends = np.cumsum(sizes)
        start = int(ends[low] - sizes[low])
        return items, logits[start : int(ends[sequences.stop - 1])], sizes[sequences]

    def costs(self) -> list[int]:
        """The cost of each question."""
        items, _, sizes = self.whole()
        firsts = [0, *accumulate([len(item.cuts) for item in items])][:-1]
        numbers = np.add.reduceat(sizes, firsts).tolist()
        repeated = [len(item.facts.labels) * characters_of(item.text) // _CHARACTERS_IN_NUMBER for item in items]
        return [sum(parts) + ANSWER_IN_NUMBERS for parts in zip(numbers, repeated, strict=True)]


def joined(parts: Sequence[Results]) -> Results:
    """The results of several parts of a request, or of several requests."""
    joined = Results()
    joined.cost = sum(part.cost for part in parts)
    for name in ("items", "versions", "places", "sizes", "logits"):
        setattr(joined, name, [*chain.from_iterable(map(attrgetter(name), parts))])
    readings = [part.readings for part in parts]
    joined.readings = None if None in readings else [*chain.from_iterable(map(attrgetter("readings"), parts))]
    return joined


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
