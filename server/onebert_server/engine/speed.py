"""How long a batch takes on this machine: measured at start, then corrected by every batch."""

import logging
import time

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

# Tokens of the batches that are measured at start, and of each sequence in them. Where the second batch takes `_LONG`
# seconds, the third is left out; the best of `_REPEATED` measurements counts.
_MEASURED = (16, 1024, 8192)
_MEASURED_LENGTH = 32
_LONG = 0.02
_REPEATED = 2


class Speed:
    """An estimate of the seconds that a batch takes: a part for each batch, and a part for each token.

    Args:
        overhead: seconds of a batch beside those of its tokens.
        per_token: seconds of a token in a large batch.
    """

    def __init__(self, overhead: float = 0.0, per_token: float = 0.0) -> None:
        self._overhead = overhead
        self._per_token = per_token
        self._correction = 1.0

    def seconds(self, tokens: float) -> float:
        """Estimated seconds of a batch."""
        return self._correction * (self._overhead + tokens * self._per_token)

    def tokens_within(self, seconds: float, most: int) -> int:
        """Tokens, at most `most`, of the largest batch that is estimated to take so long; may be negative."""
        if self.seconds(most) <= seconds:
            return most
        return int((seconds / self._correction - self._overhead) / self._per_token) if self._per_token else 0

    def observe(self, tokens: float, seconds: float) -> None:
        """Corrects the estimate by a batch that was run.

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
    for tokens in _MEASURED:
        # Two sizes at least: the smallest batch is nearly all overhead, and says nothing of what a token takes.
        if len(sizes) > 1 and seconds[-1] > _LONG:
            break
        sizes.append(tokens)
        seconds.append(min(_run(base, rows, tokens) for _ in range(_REPEATED)))
    per_token = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    if per_token <= 0:
        # The device was disturbed, or takes any of these batches in the same time.
        return Speed(0.0, seconds[-1] / sizes[-1])
    speed = Speed(max(seconds[0] - sizes[0] * per_token, 0.0), per_token)
    logger.info("this machine takes %.3g s for a batch of %d tokens", speed.seconds(sizes[-1]), sizes[-1])
    return speed


def _run(base: Base, rows: Rows, tokens: int) -> float:
    """Seconds of one batch of random tokens."""
    length = min(_MEASURED_LENGTH, tokens, base.config.max_length)
    count = tokens // length
    ids = np.random.default_rng(0).integers(0, base.config.vocab_size, [count, length])
    batch = pack(base, [tokens_of_ids(row) for row in ids.tolist()], [BASE_ROW] * count)
    started = time.perf_counter()
    encode(base, rows, batch)
    if base.device.type == "cuda":
        torch.cuda.synchronize(base.device)
    return time.perf_counter() - started
