"""Computed questions of one request: their logits, and what it takes to read them."""

from collections.abc import Sequence
from itertools import accumulate, chain, repeat

import numpy as np

from onebert_encoder.answering.scores import Array
from onebert_server.answering.plan import Question, Questions
from onebert_server.answering.reading.logits import Reading
from onebert_server.answering.resolution import Resolved
from onebert_server.answering.tokenizing import characters_of
from onebert_server.engine.block import Ended
from onebert_store.errors import AnswerNotFinite

# Up to `TINY_NUMBERS` logits of a request are read on the event loop, in less than a third of a millisecond. An answer
# costs `ANSWER_IN_NUMBERS` beside its own. A client's format may repeat the text beside each label:
# `_CHARACTERS_IN_NUMBER` characters cost one logit.
TINY_NUMBERS, ANSWER_IN_NUMBERS, _CHARACTERS_IN_NUMBER = 2048, 16, 128


class Results:
    """Computed questions: their logits and, unless that is too much for the event loop, their answers.

    Attributes:
        items: the questions.
        versions, places: the version that answered each question, and the question's number in its request.
        sizes, logits: of each sequence the number of its logits, and these, in arrays one after another.
        cost: of reading them and of writing them in a client's format, in logits.
        readings: the answers; None until they are read.
    """

    __slots__ = ("cost", "items", "logits", "places", "readings", "sizes", "versions")

    def __init__(self) -> None:
        self.items: list[Question] = []
        self.versions: list[Resolved] = []
        self.places: list[int] = []
        self.sizes: list[Array] = []
        self.logits: list[Array] = []
        self.cost = 0
        self.readings: list[Reading | AnswerNotFinite] | None = []

    def add(self, questions: Sequence[Questions], ended: Ended, first: int, stops: Sequence[int]) -> None:
        """Adds the logits of questions, whose sequences follow the `first` one; `stops`: of each one's logits."""
        for of_version in questions:
            self.readings = None
            items, facts = of_version.items, of_version.facts
            last = first + len(of_version.ids)
            sizes, logits = ended.outputs[first:last], ended.logits[stops[first] : stops[last]]
            of_version.computed, first = (logits, sizes), last
            self.items += items
            self.versions += repeat(of_version.resolved, len(items))
            self.places += of_version.numbers
            self.sizes.append(sizes)
            self.logits.append(logits)
            repeated = len(facts.labels) * of_version.characters // _CHARACTERS_IN_NUMBER
            self.cost += logits.size + ANSWER_IN_NUMBERS * len(items) + repeated

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
    for part in parts:
        joined.items += part.items
        joined.versions += part.versions
        joined.places += part.places
        joined.sizes += part.sizes
        joined.logits += part.logits
        joined.cost += part.cost
    if all(part.readings is not None for part in parts):
        joined.readings = [*chain.from_iterable(part.readings or () for part in parts)]
    return joined
