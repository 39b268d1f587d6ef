"""How long a batch takes on this machine: measured at start, then corrected by every batch."""

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

logger = logging.getLogger("onebert.engine")

# Share of the newest batch in the correction.
_SMOOTHING = 0.2
# One batch counts as at most so many times slower than estimated: a process that was halted has not become slow.
_MOST_SLOWER = 4.0
# The correction makes the estimate at most ten times faster than what was measured at start. A measurement beside
# other work that was ending can be that wrong; an estimate that could fall to nothing would no longer bound any wait.
_MOST_FASTER = 0.1

# What the part for each batch may be of the time of a large one: about a thirty-fifth. Smaller batches would cost
# capacity; larger ones would gain hardly any, and whoever is in one waits for all of it.
_START_SHARE = 0.028
# A batch costs more than what is measured here, such as waking up those who wait for answers, and on a busy machine the
# engine's own turn: a batch of fewer seconds would be too short even where it hardly costs anything beside its tokens.
# About what 512 tokens of MiniLM-L6 take on two cores.
LEAST_SECONDS = 0.014

# Tokens of the batches that are measured at start, and of each sequence in them. Where the second batch takes `_LONG`
# seconds, the third is left out; the best of `_REPEATED` measurements counts. Of the first, which is over in no time
# and tells what a batch costs beside its tokens, it is the best of more.
_MEASURED = (16, 1024, 8192)
_MEASURED_LENGTH = 32
_LONG = 0.02
_REPEATED = (8, 2, 2)


class Speed:
    """An estimate of the seconds that a batch takes: a part for each batch, and a part for each token.

    Args:
        start: seconds of a batch beside those of its tokens.
        per_token: seconds of a token in a large batch.
    """

    def __init__(self, start: float = 0.0, per_token: float = 0.0) -> None:
        self._start = start
        self._per_token = per_token
        self._correction = 1.0

    def seconds(self, tokens: float) -> float:
        """Estimated seconds of a batch."""
        return self._correction * (self._start + tokens * self._per_token)

    def tokens_within(self, seconds: float, most: int) -> int:
        """Tokens, at most `most`, of the largest batch that is estimated to take so long.

        Where the part for each batch leaves little for tokens they are those that take as long as that part.
        """
        if self.seconds(most) <= seconds or not self._per_token:
            return most
        left = seconds / self._correction - self._start
        return min(max(int(left / self._per_token), ceil(self._start / self._per_token), 1), most)

    def worthwhile(self, most: int) -> int:
        """Tokens, at most `most`, of the smallest batch in whose time the part for each batch is a small share."""
        share = _START_SHARE / (1 - _START_SHARE)
        if self._start >= share * most * self._per_token:
            return most
        return min(ceil(max(self._start / share, LEAST_SECONDS) / self._per_token), most)

    def observe(self, tokens: float, seconds: float) -> None:
        """Corrects the estimate by a batch that was run, both parts alike.

        Args:
            tokens: that were computed; layers that texts of the batch share count once, or the batch would seem fast.
            seconds: it took.
        """
        if estimated := self.seconds(tokens):
            ratio = min(seconds / estimated, _MOST_SLOWER)
            self._correction = max(self._correction * (1 + _SMOOTHING * (ratio - 1)), _MOST_FASTER)


def measure_speed(base: Base, rows: Rows) -> Speed:
    """Runs a few batches of the bare base on the calling thread, a fraction of a second in all on most machines."""
    sizes: list[int] = []
    seconds: list[float] = []
    for tokens, repeated in zip(_MEASURED, _REPEATED, strict=True):
        # Two sizes at least: the smallest batch is nearly all overhead, and says nothing of what a token takes.
        if len(sizes) > 1 and seconds[-1] > _LONG:
            break
        sizes.append(tokens)
        seconds.append(min(_run(base, rows, tokens) for _ in range(repeated)))
    per_token = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    if per_token <= 0:
        # The device was disturbed, or takes any of these batches in the same time; batches will say which.
        return Speed(seconds[-1] / 2, seconds[-1] / 2 / sizes[-1])
    # However a token's part was measured, some of the smallest batch is the part for each batch: it is corrected as a
    # share of what it is, and so must not be nothing.
    speed = Speed(max(seconds[0] - sizes[0] * per_token, seconds[0] / 10), per_token)
    logger.info("this machine takes %.3g s for a batch of %d tokens", speed.seconds(sizes[-1]), sizes[-1])
    return speed


def _run(base: Base, rows: Rows, tokens: int) -> float:
    """Seconds of one batch of random tokens."""
    length = min(_MEASURED_LENGTH, tokens, base.config.max_length)
    count = tokens // length
    ids = np.random.default_rng(0).integers(0, base.config.vocab_size, [count, length])
    tokens_of_each = [tokens_of_ids(row) for row in ids.tolist()]
    started = time.perf_counter()
    batch = pack(base, tokens_of_each, [BASE_ROW] * count)
    encode(base, rows, batch)
    if base.device.type == "cuda":
        torch.cuda.synchronize(base.device)
    return time.perf_counter() - started
