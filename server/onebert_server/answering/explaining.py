"""Which words an answer is owed to: an input as often as it has words, each time without one of them."""

from collections.abc import Sequence
from typing import NamedTuple

from onebert_encoder.answering.results import Prediction
from onebert_encoder.explaining.words import Stretch, can_go, joined, without, words_of
from onebert_encoder.text.tokens import Pieces, Text, Tokenizer
from onebert_server.answering.plan import Reading
from onebert_server.limits import MAX_EXPLAINED_CHARACTERS, MAX_LEFT_OUT
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput, TooLarge


class LeftOut(NamedTuple):
    """Stretches of an input, and the input without each of them."""

    stretches: list[Stretch]
    texts: list[Text]


def leave_out(
    texts: Sequence[Text], inputs: Sequence[Pieces], readings: Sequence[Reading], facts: Facts, tokenizer: Tokenizer
) -> list[LeftOut]:
    """What has to be asked to explain answers; of a text that was cut only words that were read are left out.

    Args:
        texts: the inputs.
        inputs: the same, split.
        readings: their answers.
        facts: of the version that answered.
        tokenizer: the base's.

    Raises:
        TooLarge: the texts are too long together.
    """
    questions, characters = [], 0
    for text, pieces, reading in zip(texts, inputs, readings, strict=True):
        whole = tuple((0, length) for length in pieces.lengths)
        kept = tokenizer.fit(pieces, facts.max_length) if reading.windows is None else whole
        alignment = tokenizer.cut(pieces, kept, align=True).alignment
        stretches = joined(words_of(alignment), MAX_LEFT_OUT) if alignment is not None else []
        stretches = [one for one in stretches if can_go(text, one)]
        characters += len(stretches) * len(text if isinstance(text, str) else "".join(text))
        if characters > MAX_EXPLAINED_CHARACTERS:
            raise TooLarge(
                f"the inputs, each as often as it has words, are over {MAX_EXPLAINED_CHARACTERS} characters; "
                "ask to explain fewer, or shorter ones"
            )
        questions.append(LeftOut(stretches, [without(text, one) for one in stretches]))
    return questions


def prediction_of(reading: Reading, facts: Facts) -> Prediction:
    """The answer about a whole text.

    Raises:
        InvalidInput: this task type answers otherwise.
    """
    if not isinstance(reading.answer, Prediction):
        raise InvalidInput(f"{facts.ref} is a {facts.task_type} task, whose answers are not explained")
    return reading.answer
