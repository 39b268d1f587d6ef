"""Estimates the duration of a batch on this machine: measured at start, then corrected by every batch."""

import logging
import time
from math import ceil

import numpy as np
import torch

from onebert_encoder.base.base import Base
from onebert_encoder.maths.batch import BASE_ROW, pack
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.predict import tokens_of_ids
from onebert_encoder.maths.rows import Rows
from onebert_encoder.maths.sequences import Sequences

logger = logging.getLogger("onebert.engine")

# Weight of the newest batch in the correction.
_SMOOTHING = 0.2
# One batch counts as at most so many times slower than estimated: a process that was halted has not become slow.
_MOST_SLOWER = 4.0
# The estimate becomes at most ten times faster than the measurement at start, which other work that was ending can
# distort that much; an estimate near zero would no longer bound any wait.
_MOST_FASTER = 0.1

# Share of the fixed cost in the time of a large batch, about 1/35. Smaller batches would cost capacity; larger ones
# would gain hardly any, and every text waits for its whole batch.
_START_SHARE = 0.028
# Least duration of a batch in seconds. A batch has costs beyond the measured ones, such as waking the callers, and on a
# busy machine the engine thread's own turn: a shorter batch would be too short even if its measured fixed cost is
# small. 512 tokens of MiniLM-L6 take about this time on two cores.
LEAST_SECONDS = 0.014

# Tokens of the batches that are measured at start, and of each sequence in them. If a batch but the first takes over
# `_LONG` seconds, no larger one is measured. The best of `_REPEATED` measurements counts; short batches, which anything
# disturbs, are repeated more often.
_MEASURED = (16, 256, 1024, 8192)
_MEASURED_LENGTH, _LONG = 32, 0.02
_REPEATED = (8, 4, 2, 2)


class Speed:
    """Estimates the seconds of a batch: a fixed cost `start`, plus a cost `per_token` as in a large batch."""

    def __init__(self, start: float = 0.0, per_token: float = 0.0) -> None:
        self._start = start
        self._per_token = per_token
        self._correction = 1.0

    def seconds(self, tokens: float) -> float:
        return self._correction * (self._start + tokens * self._per_token)

    def tokens_within(self, seconds: float, most: int) -> int:
        """Returns the tokens, at most `most`, of the largest batch within an estimated time.

        If the fixed cost leaves little time, the batch gets the number of tokens that take the same time as the fixed
        cost.
        """
        if self.seconds(most) <= seconds or not self._per_token:
            return most
        left = seconds / self._correction - self._start
        return min(max(int(left / self._per_token), ceil(self._start / self._per_token), 1), most)

    def worthwhile(self, most: int) -> int:
        """Returns the tokens, at most `most`, of the smallest batch with a small share of fixed cost.

        Batches grow if the machine turns out faster than measured, as after a start beside other work; if it turns out
        slower, they keep their size: smaller ones would be slower still for each token.
        """
        share = _START_SHARE / (1 - _START_SHARE)
        if self._start >= share * most * self._per_token:
            return most
        least = LEAST_SECONDS / min(self._correction, 1.0)
        return min(ceil(max(self._start / share, least) / self._per_token), most)

    def observe(self, tokens: float, seconds: float) -> None:
        """Corrects the estimate by a batch, both costs alike; in `tokens`, layers that texts share count once."""
        if estimated := self.seconds(tokens):
            ratio = min(seconds / estimated, _MOST_SLOWER)
            self._correction = max(self._correction * (1 + _SMOOTHING * (ratio - 1)), _MOST_FASTER)


def measure_speed(base: Base, rows: Rows) -> Speed:
    """Runs a few batches of the bare base on the calling thread; under a second in all on most machines."""
    sizes: list[int] = []
    seconds: list[float] = []
    for tokens, repeated in zip(_MEASURED, _REPEATED, strict=True):
        # At least two sizes: the smallest batch is nearly all fixed cost, and does not show the cost of a token.
        if len(sizes) > 1 and seconds[-1] > _LONG:
            break
        sizes.append(tokens)
        seconds.append(min(run_bare(base, rows, tokens) for _ in range(repeated)))
    per_token = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    if per_token <= 0:
        # The device was disturbed, or takes the same time for all of these batches; later batches will correct it.
        return Speed(seconds[-1] / 2, seconds[-1] / 2 / sizes[-1])
    # The fixed cost must not be 0, because corrections scale it: at least a tenth of the smallest batch.
    speed = Speed(max(seconds[0] - sizes[0] * per_token, seconds[0] / 10), per_token)
    logger.info("this machine takes %.3g s for a batch of %d tokens", speed.seconds(sizes[-1]), sizes[-1])
    return speed


def run_bare(base: Base, rows: Rows, tokens: int = _MEASURED[0]) -> float:
    """Computes a batch of the bare base, which no delta can break; returns its seconds."""
    length = min(_MEASURED_LENGTH, tokens, base.config.max_length)
    count = tokens // length
    ids = np.random.default_rng(0).integers(0, base.config.vocab_size, [count, length])
    inputs = Sequences.of([tokens_of_ids(row) for row in ids.tolist()])
    started = time.perf_counter()
    batch = pack(base, inputs, [BASE_ROW] * count)
    encode(base, rows, batch)
    if base.device.type == "cuda":
        torch.cuda.synchronize(base.device)
    return time.perf_counter() - started
