"""How far one measurement is ahead of another on the same rows, and how sure that is."""

from math import sqrt

import numpy as np

from onebert_training.data.splitting import SPLIT_SEED
from onebert_training.fit.run import Measurement, Run
from onebert_training.tasks.metrics import LOWER_IS_BETTER

_BLOCKS = 20


def lead_of(run: Run, one: Measurement, other: Measurement) -> tuple[float, float]:
    """How much better `one` is than `other` in the deciding metric, and the standard error of that.

    The error is the jackknife's over blocks of examples: whatever the metric, and with both runs measured on the same
    examples.

    Args:
        run: one of the runs, which are on the same data.
        one: measured on a split.
        other: measured on the same split.
    """
    examples, tokens = run.data.splits[one.split], run.inputs.splits[one.split].tokens
    sides = [run.objective.read(examples, tokens, side.logits) for side in (one, other)]

    def lead(rows: np.ndarray) -> float:
        part = examples.take(rows)
        scores = [run.objective.score(part, [side[i] for i in rows])[run.metric] for side in sides]
        return (scores[1] - scores[0]) if run.metric in LOWER_IS_BETTER else scores[0] - scores[1]

    order = np.random.default_rng(SPLIT_SEED).permutation(len(examples))
    blocks = min(_BLOCKS, len(examples))
    if blocks < 2:
        return lead(order), 0.0
    place = np.arange(len(order)) * blocks // len(order)
    left_out = np.array([lead(order[place != block]) for block in range(blocks)])
    return lead(order), sqrt((blocks - 1) / blocks * float(((left_out - left_out.mean()) ** 2).sum()))
