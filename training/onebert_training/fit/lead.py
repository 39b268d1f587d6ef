"""How far one measurement is ahead of another on the same rows, and how sure that is."""

from math import nan
from typing import Literal

import numpy as np

from onebert_training.data.splitting import SPLIT_SEED
from onebert_training.fit.evaluation import Measurement
from onebert_training.fit.run import Run
from onebert_training.heads.seen import Answers
from onebert_training.heads.yardsticks import Yardsticks
from onebert_training.tasks.metrics import Judged

_BLOCKS = 20


def judged(run: Run, measured: Measurement) -> Judged:
    """The deciding metric of a measurement, and without each of twenty blocks of its examples."""
    examples, tokens = run.data.splits[measured.split], run.inputs.splits[measured.split].tokens
    answers = run.objective.read(examples, tokens, measured.logits)

    def score(rows: np.ndarray) -> float:
        return run.objective.score(examples.take(rows), [answers[i] for i in rows])[run.metric]

    order = np.random.default_rng(SPLIT_SEED).permutation(len(examples))
    blocks = min(_BLOCKS, len(examples))
    place = np.arange(len(order)) * blocks // len(order)
    left_out = tuple(score(order[place != block]) for block in range(blocks)) if blocks > 1 else ()
    return Judged(run.metric, score(order), left_out)


def lead_of(run: Run, one: Measurement, other: Measurement) -> tuple[float, float]:
    """How much better `one` is than `other` in the deciding metric, and the standard error of that.

    Args:
        run: one of the runs, which are on the same data.
        one: measured on a split.
        other: measured on the same split.
    """
    return judged(run, one).lead_over(judged(run, other))


def judged_head(run: Run, answers: Answers | None, measured: Measurement) -> Judged | None:
    """The exact head alone on the rows of a measurement; None where there is no head, or it has not read them all."""
    # Of very many words a yardstick reads some.
    if answers is None or len(answers.logits) != len(measured.logits):
        return None
    return judged(run, Measurement(measured.split, answers.scores, answers.loss, answers.logits))


def unbeaten(
    run: Run, measured: Measurement, own: Judged, yardsticks: Yardsticks
) -> Literal["constant", "head"] | None:
    """The yardstick that speaks against a result on the rows that decide: one that it is not ahead of, or is behind.

    Args:
        run: of the result.
        measured: on the rows that decide.
        own: `measured`, as it is judged.
        yardsticks: on the same rows.
    """
    examples, tokens = run.data.splits[measured.split], run.inputs.splits[measured.split].tokens
    if (best := run.objective.best_constant(examples, tokens, run.metric)) is not None:
        always = run.objective.always(best[0], tokens, len(examples))
        constant = judged(run, Measurement(measured.split, best[1], nan, always))
        if not own.is_ahead_of(constant):
            return "constant"
    head = None if run.plan.exact else judged_head(run, yardsticks.answers, measured)
    return "head" if head is not None and head.is_ahead_of(own) else None
