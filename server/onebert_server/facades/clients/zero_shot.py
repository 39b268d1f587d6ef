"""Labels that no task was trained for: a task on pairs that knows entailment says whether the text entails each."""

from collections.abc import Sequence

import numpy as np

from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.scores import Array, softmax
from onebert_server.answering.answers import Answered
from onebert_server.facades.reading import predicted
from onebert_server.limits import MAX_TEXT
from onebert_store.errors import InvalidInput, TooLarge

TEMPLATE = "This example is {}."
HOLE = "{}"


def pairs(text: str, labels: Sequence[str], template: str | None) -> list[tuple[str, str]]:
    """The text with a hypothesis for each label.

    Args:
        text: the premise.
        labels: of which each takes the template's `{}`.
        template: None is `TEMPLATE`.

    Raises:
        InvalidInput: the template has not exactly one place for a label.
        TooLarge: a hypothesis is longer than a text may be.
    """
    template = TEMPLATE if template is None else template
    # A label for every hole would make a long text of a short request.
    if template.count(HOLE) != 1:
        raise InvalidInput("the hypothesis_template has exactly one {} for the label")
    if len(template) + max(map(len, labels)) > MAX_TEXT:
        raise TooLarge(f"a hypothesis has at most {MAX_TEXT} characters")
    # Replaced and not formatted: a template is a client's, and format would read attributes.
    return [(text, template.replace(HOLE, label)) for label in labels]


def whole(answered: Answered) -> Prediction:
    """What is said of a pair.

    Raises:
        AnswerNotFinite: the answer is no number.
        InvalidInput: the task does not label whole texts; or the pair is too long to be read at once, since parts of a
            hypothesis are other hypotheses.
    """
    reading = answered.read()
    if reading.truncated or (reading.windows or 1) > 1:
        facts = answered.facts
        raise InvalidInput(f"the text with a label has more than the {facts.max_length} tokens that {facts.ref} reads")
    return predicted(answered)


def scores(answers: Sequence[Prediction], several: bool) -> list[float]:
    """The score of each label: together they are 1, or each is a probability of its own.

    Args:
        answers: of each label, with logits as scores.
        several: whether several labels may be true; one label alone always has a probability of its own.

    Raises:
        InvalidInput: the task does not know entailment.
    """
    names = [name.lower() for name in answers[0].names]
    entailed, contradicted = _index(names, "entail"), _index(names, "contradict", "not_entail", "not-entail")
    logits: Array = np.array([answer.scores for answer in answers])
    if not several and len(answers) > 1:
        alone: list[float] = softmax(logits[:, entailed]).tolist()
        return alone
    each: list[float] = softmax(logits[:, [contradicted, entailed]])[:, 1].tolist()
    return each


def _index(names: Sequence[str], *beginnings: str) -> int:
    found = [index for index, name in enumerate(names) if name.startswith(beginnings)]
    if len(found) != 1:
        raise InvalidInput(
            "candidate labels take a task on pairs with the labels entailment and contradiction (or not_entailment)"
        )
    return found[0]
