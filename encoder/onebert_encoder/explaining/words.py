"""Words of an input, the input without some of them, and what that says of an answer; knows no torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Literal, NamedTuple, get_args

from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.stretches import word_tokens
from onebert_encoder.text.tokens import Alignment, Text
from onebert_store.errors import AnswerNotFinite

Field = Literal["text", "text_pair"]
Method = Literal["occlusion", "gradient_times_input"]

FIELDS: tuple[Field, Field] = ("text", "text_pair")
METHODS: tuple[Method, ...] = get_args(Method)


class Stretch(NamedTuple):
    """`text[start:end]` of one half of an input, in code points: a word, or neighbors; and its tokens."""

    half: int
    start: int
    end: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class WordEffect:
    """What an answer owes to a stretch of the input.

    Attributes:
        field: which text of the input it is in.
        start: its first code point.
        end: the code point behind it.
        effect: on the number that is explained: above 0 the stretch raises it, below 0 it lowers it.
    """

    field: Field
    start: int
    end: int
    effect: float


@dataclass(frozen=True)
class Explanation:
    """Which words an answer is owed to.

    Attributes:
        method: `occlusion`: an effect is the score with a stretch less the score without it, in the units of the
            answer's scores. `gradient_times_input`: an effect is in logits, to first order, against the mean of the
            text's embeddings.
        label: whose score is explained, the answer's.
        words: in the order of the text; stretches of neighbors where there are many words. Empty where an input has
            nothing that could be left out.
    """

    method: Method
    label: str
    words: list[WordEffect]


def words_of(alignment: Alignment) -> list[Stretch]:
    """Every word that the tokenizer sees, punctuation marks too."""
    offsets = alignment.offsets
    return [
        Stretch(alignment.sequences[tokens[0]] or 0, offsets[tokens[0]][0], offsets[tokens[-1]][1], tuple(tokens))
        for tokens in word_tokens(alignment)
    ]


def joined(words: Sequence[Stretch], most: int) -> list[Stretch]:
    """At most so many stretches, but at least one of each half: words, or as many neighbors together as it takes."""
    halves = [[word for word in words if word.half == half] for half in (0, 1)]
    together = 1
    while sum(-(-len(half) // together) for half in halves) > max(most, len(halves)):
        together += 1
    groups = [half[at : at + together] for half in halves for at in range(0, len(half), together)]
    return [
        Stretch(group[0].half, group[0].start, group[-1].end, tuple(chain.from_iterable(one.tokens for one in group)))
        for group in groups
    ]


def without(text: Text, stretch: Stretch) -> Text:
    """An input without a stretch, and without the whitespace that would then be doubled, or stand at an end."""
    halves = [text] if isinstance(text, str) else list(text)
    whole = halves[stretch.half]
    before, behind = whole[: stretch.start], whole[stretch.end :]
    if not before.strip():
        behind = behind.lstrip()
    elif not behind or behind[0].isspace():
        before = before.rstrip()
    halves[stretch.half] = before + behind
    return halves[0] if isinstance(text, str) else (halves[0], halves[1])


def removable(stretches: Sequence[Stretch]) -> list[Stretch]:
    """The stretches of an input whose half has another one: a half without its only one may have no token."""
    count = Counter(one.half for one in stretches)
    return [one for one in stretches if count[one.half] > 1]


def explain_by_occlusion(whole: Prediction, stretches: Sequence[Stretch], left: Sequence[float]) -> Explanation:
    """How much less the score of the answer's label is without each stretch.

    Args:
        whole: the answer to the whole input.
        stretches: those that were left out.
        left: the score of the answer's label without each of them.
    """
    effects = [whole.score - score for score in left]
    return explanation("occlusion", whole.label, stretches, effects)


def explanation(method: Method, label: str, stretches: Sequence[Stretch], effects: Sequence[float]) -> Explanation:
    """Stretches with their effects.

    Raises:
        AnswerNotFinite: an effect is NaN or infinite.
    """
    if not all(map(isfinite, effects)):
        raise AnswerNotFinite("what the answer owes to a word is not a finite number")
    both = zip(stretches, effects, strict=True)
    words = [WordEffect(FIELDS[one.half], one.start, one.end, effect) for one, effect in both]
    return Explanation(method, label, words)
