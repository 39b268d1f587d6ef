"""Question → sequences → answer: what the engine runs for one question, and how its logits become one answer.

A question is one input for one version. In the engine's process a plan expands it into the sequences to run, each with
the row that answers it and a role. Where the text is, which may be a front end, the plan reduces what was computed to
one answer. Today every question is one sequence.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.results import Answer
from onebert_encoder.answering.scores import Logits
from onebert_encoder.text.tokens import Cut, Pieces, Text, Tokenizer
from onebert_server.versions.facts import Facts
from onebert_server.versions.version import Version

# The role of a sequence whose logits are the answer.
ANSWER = "answer"


class Planned(NamedTuple):
    """One sequence that shall be run: which pieces of the input, by the row of which slot, and what for."""

    kept: Cut
    slot: int
    role: str = ANSWER


class Computed(NamedTuple):
    """What the engine made of a planned sequence: [labels] float32, or [tokens, labels] for a per-token task."""

    kept: Cut
    role: str
    logits: Logits


class Question(NamedTuple):
    """One input for one version, with all that its answer is read with."""

    text: Text
    pieces: Pieces
    facts: Facts
    asked: Asked


class Reading(NamedTuple):
    """An answer, the number of tokens that it is about, and whether some of the input's were left out."""

    answer: Answer
    tokens: int
    truncated: bool


class Plan(Protocol):
    """How questions are expanded and answers reduced; only `Computed` goes from one to the other."""

    def expand(self, pieces: Pieces, version: Version, tokenizer: Tokenizer) -> Sequence[Planned]:
        """The sequences to run for one input, at least one.

        Raises:
            InvalidInput: the version cannot take the input.
        """

    def reduce(self, question: Question, computed: Sequence[Computed], tokenizer: Tokenizer) -> Reading:
        """One answer from what was computed for the sequences of `expand`, in their order; all of it is finite."""


class OneSequence:
    """A question is one sequence: the beginning of the input, as long as the task takes it."""

    def expand(self, pieces: Pieces, version: Version, tokenizer: Tokenizer) -> Sequence[Planned]:
        """See Plan."""
        return (Planned(tokenizer.fit(pieces, version.facts.max_length), version.slot),)

    def reduce(self, question: Question, computed: Sequence[Computed], tokenizer: Tokenizer) -> Reading:
        """See Plan."""
        [only] = computed
        facts = question.facts
        alignment = tokenizer.cut(question.pieces, only.kept, align=True).alignment if facts.per_token else None
        found = answer(only.logits, facts, question.text, alignment, question.asked)
        return Reading(found, *tokenizer.measure(question.pieces, only.kept))
