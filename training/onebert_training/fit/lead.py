"""Measures how far one result is ahead of another on the same rows, with its standard error."""

from math import nan
from typing import Literal

import numpy as np

from onebert_training.data.splitting import SPLIT_SEED
from onebert_training.fit.run import Run
from onebert_training.heads.seen import Answers
from onebert_training.heads.yardsticks import Yardsticks
from onebert_training.tasks.metrics import Judged
from onebert_training.tasks.objective import Measurement

_BLOCKS = 20


def judged(run: Run, measured: Measurement) -> Judged:
    """The deciding metric of a measurement, on all examples and without each of up to twenty blocks of them."""
    examples, tokens = run.data.splits[measured.split], run.inputs.splits[measured.split].tokens
    answers = run.objective.read(examples, tokens, measured.logits)

    def score(rows: np.ndarray) -> float:
        return run.objective.score(examples.take(rows), [answers[i] for i in rows])[run.metric]

    order = np.random.default_rng(SPLIT_SEED).permutation(len(examples))
    blocks = min(_BLOCKS, len(examples))
    place = np.arange(len(order)) * blocks // len(order)
    left_out = tuple(score(order[place != block]) for block in range(blocks)) if blocks > 1 else ()
    return Judged(run.metric, score(order), left_out)


def head_beside(measured: Measurement, answers: Answers | None) -> Answers | None:
    """The exact head's answers to the rows of a measurement; None without a head, or if it has not read all rows."""
    # A yardstick reads only a part of very many words.
    return answers if answers and len(answers.logits) == len(measured.logits) else None


def unbeaten(
    run: Run, measured: Measurement, own: Judged, yardsticks: Yardsticks
) -> Literal["constant", "head"] | None:
    """The yardstick against a result, on the same rows: a constant it is not ahead of, or an exact head ahead of it."""
    examples, tokens = run.data.splits[measured.split], run.inputs.splits[measured.split].tokens
    if (best := run.objective.best_constant(examples, tokens, run.metric)) is not None:
        always = run.objective.always(best[0], tokens, len(examples))
        constant = judged(run, Measurement(measured.split, best[1], nan, always))
        if not own.is_ahead_of(constant):
            return "constant"
    head = None if run.plan.exact else head_beside(measured, yardsticks.answers)
    return "head" if head and judged(run, head).is_ahead_of(own) else None
