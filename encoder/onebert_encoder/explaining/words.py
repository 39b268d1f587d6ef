"""Words of an input, the input without some of them, and their effects on an answer; imports no torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Literal, NamedTuple, get_args

from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.stretches import word_tokens
from onebert_encoder.text.tokens import Alignment, Text, halves_of, text_of
from onebert_store.errors import AnswerNotFinite

Field = Literal["text", "text_pair"]
Method = Literal["occlusion", "gradient_times_input"]

FIELDS: tuple[Field, Field] = ("text", "text_pair")
METHODS: tuple[Method, ...] = get_args(Method)


class Stretch(NamedTuple):
    """The slice `text[start:end]` of one half, in code points (a word, or neighboring words), and its token indices."""

    half: int
    start: int
    end: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class WordEffect:
    """The effect of the slice `start:end` (code points) of a text; positive if it raises the explained number."""

    field: Field
    start: int
    end: int
    effect: float


@dataclass(frozen=True)
class Explanation:
    """The effects of an input's words on the score of its answer's `label`.

    With `occlusion` an effect is the score with a stretch minus the score without it; with `gradient_times_input` it is
    in logits, to first order, relative to the mean of the text's embeddings. Long texts join neighboring words; `words`
    is empty if nothing can be left out.
    """

    method: Method
    label: str
    words: list[WordEffect]


def words_of(alignment: Alignment) -> list[Stretch]:
    """Every word of the tokenizer, including punctuation marks."""
    offsets = alignment.offsets
    return [
        Stretch(alignment.sequences[tokens[0]] or 0, offsets[tokens[0]][0], offsets[tokens[-1]][1], tuple(tokens))
        for tokens in word_tokens(alignment)
    ]


def joined(words: Sequence[Stretch], limit: int) -> list[Stretch]:
    """Joins neighboring words until there are at most `limit` stretches (at least one per half)."""
    halves = [[word for word in words if word.half == half] for half in (0, 1)]
    together = 1
    while sum(-(-len(half) // together) for half in halves) > max(limit, len(halves)):
        together += 1
    groups = [half[at : at + together] for half in halves for at in range(0, len(half), together)]
    return [
        Stretch(group[0].half, group[0].start, group[-1].end, tuple(chain.from_iterable(word.tokens for word in group)))
        for group in groups
    ]


def without(text: Text, stretch: Stretch) -> Text:
    """The input without a stretch; whitespace left doubled or at an end is removed."""
    halves = [*halves_of(text)]
    half = halves[stretch.half]
    before, behind = half[: stretch.start], half[stretch.end :]
    if not before.strip():
        behind = behind.lstrip()
    elif not behind or behind[0].isspace():
        before = before.rstrip()
    halves[stretch.half] = before + behind
    return text_of(*halves)


def removable(stretches: Sequence[Stretch]) -> list[Stretch]:
    """The stretches whose half has another one: a half without its only stretch may have no token."""
    count = Counter(stretch.half for stretch in stretches)
    return [stretch for stretch in stretches if count[stretch.half] > 1]


def explain_by_occlusion(prediction: Prediction, stretches: Sequence[Stretch], scores: Sequence[float]) -> Explanation:
    """Effects from `scores`, which the answer's label has without each stretch."""
    effects = [prediction.score - score for score in scores]
    return explanation("occlusion", prediction.label, stretches, effects)


def explanation(method: Method, label: str, stretches: Sequence[Stretch], effects: Sequence[float]) -> Explanation:
    """Builds an explanation; raises AnswerNotFinite if an effect is NaN or infinite."""
    if not all(map(isfinite, effects)):
        raise AnswerNotFinite("what the answer owes to a word is not a finite number")
    both = zip(stretches, effects, strict=True)
    words = [WordEffect(FIELDS[stretch.half], stretch.start, stretch.end, effect) for stretch, effect in both]
    return Explanation(method, label, words)
