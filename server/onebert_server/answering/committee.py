"""The answer of a committee: several versions of a task answer each text, and their scores are averaged."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from onebert_encoder.answering.results import Prediction
from onebert_server.answering.plan import Reading
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput


class Committee(NamedTuple):
    """The versions that answered, and the standard deviation of their scores of the answered label."""

    versions: Sequence[int]
    spread: float


def averaged(facts: Sequence[Facts], readings: Sequence[Reading]) -> tuple[Reading, Committee]:
    """Returns the mean of the members' scores, each by the member's own rules.

    Labels over their thresholds, and abstentions, count where more than half of the members agree. The length and
    windows of the input are the first member's.

    Raises:
        InvalidInput: the members have no scores of the same labels.
    """
    first = facts[0]
    if any((one.task_type, one.labels) != (first.task_type, first.labels) for one in facts):
        raise InvalidInput(f"the versions of {first.task}@committee differ in their labels, so scores have no mean")
    answers = [one.answer for one in readings if isinstance(one.answer, Prediction)]
    if len(answers) < len(readings):
        raise InvalidInput(f"{first.ref} is a {first.task_type} task, whose answers have no mean")
    each = np.stack([one.scores for one in answers])
    scores, best = each.mean(axis=0), answers[0].best
    if answers[0].ranks:
        best = int(scores.argmax())
    order = [answers[0].names[i] for i in np.argsort(-scores, kind="stable").tolist()]
    most = len(answers) / 2
    selected, abstained, energy = answers[0].selected, answers[0].abstained, answers[0].energy
    if selected is not None:
        selected = [name for name in order if sum(name in (one.selected or ()) for one in answers) > most]
    if abstained is not None:
        abstained = sum(bool(one.abstained) for one in answers) > most
    if energy is not None:
        energy = float(np.mean([one.energy for one in answers if one.energy is not None]))
    mean = replace(answers[0], scores=scores, best=best, selected=selected, abstained=abstained, energy=energy)
    spread = float(each[:, best].std())
    return readings[0]._replace(answer=mean), Committee([one.version for one in facts], spread)
