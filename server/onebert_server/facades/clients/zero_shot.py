"""Zero-shot labels: a task on pairs with an entailment label scores whether the text entails each candidate label."""

from collections.abc import Sequence

import numpy as np

from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.scores import Array, softmax
from onebert_server.answering.reading import Answered
from onebert_server.facades.facade import predicted
from onebert_server.limits import MAX_TEXT
from onebert_store.errors import InvalidInput, TooLarge

TEMPLATE = "This example is {}."
HOLE = "{}"


def pairs(text: str, labels: Sequence[str], template: str | None) -> list[tuple[str, str]]:
    """Pairs the text with one hypothesis per label; the template has exactly one `{}`, None means `TEMPLATE`."""
    template = TEMPLATE if template is None else template
    # With several holes, a short request could produce a long text.
    if template.count(HOLE) != 1:
        raise InvalidInput("the hypothesis_template has exactly one {} for the label")
    if len(template) + max(map(len, labels)) > MAX_TEXT:
        raise TooLarge(f"a hypothesis has at most {MAX_TEXT} characters")
    # `replace`, because `format` would let the client's template read attributes.
    return [(text, template.replace(HOLE, label)) for label in labels]


def prediction_of(answered: Answered) -> Prediction:
    """The prediction of a pair that fits one sequence, since a part of a hypothesis is another hypothesis."""
    reading = answered.read()
    if reading.truncated or (reading.windows or 1) > 1:
        facts = answered.facts
        raise InvalidInput(f"the text with a label has more than the {facts.max_length} tokens that {facts.ref} reads")
    return predicted(answered)


def scores(answers: Sequence[Prediction], several: bool) -> list[float]:
    """The score of each label from its logits: a softmax over the labels, or with `several` independent probabilities.

    A single label always gets an independent probability.
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
    matches = [index for index, name in enumerate(names) if name.startswith(beginnings)]
    if len(matches) != 1:
        raise InvalidInput(
            "candidate labels take a task on pairs with the labels entailment and contradiction (or not_entailment)"
        )
    return matches[0]
