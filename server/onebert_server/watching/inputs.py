"""Watches the source of a base's texts: the base's own vectors of a small sample, beside the first day's."""

import io
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from onebert_server.watching.alarms import OVER
from onebert_server.watching.statistics import Array
from onebert_server.watching.windows import PART, PARTS, WINDOW
from onebert_store.disk import write_whole
from onebert_store.errors import StorageFull

logger = logging.getLogger("onebert.watch")

# The reference has at least so many texts and seconds: the hours of a day differ.
LEAST_TEXTS, LEAST_SECONDS = 1000, 86400.0


def source_p(sums: Array, total: Array, count: int) -> float:
    """The probability of a mean this far from the reference's by chance: Hotelling's T² with its covariance.

    Args:
        sums: [outputs + 1, outputs + 1], the sum of x xᵀ over the reference's texts, x being 1 and a vector.
        total: [outputs], the sum of `count` live vectors.
    """
    from scipy.stats import f  # noqa: PLC0415 - slow to import

    texts, mean = sums[0, 0], sums[0, 1:] / sums[0, 0]
    spread, directions = np.linalg.eigh((sums[1:, 1:] - texts * np.outer(mean, mean)) / (texts - 1))
    # A base may not vary in all directions.
    varying = spread > spread[-1] * 1e-9
    moved = (total / count - mean) @ directions[:, varying]
    squared = (moved**2 / spread[varying]).sum() * texts * count / (texts + count)
    outputs = int(varying.sum())
    free = texts - outputs
    # Doubled: vectors of real texts have heavier tails, and p-values under 0.01 come 1.5 times as often as by F.
    return min(1.0, 2 * float(f.sf(squared * free / (outputs * (texts - 1)), outputs, free)))


class Inputs:
    """The vectors of one base's texts. The engine's thread adds them, `later` runs the rest; any thread may read.

    Args:
        path: file that keeps the reference over restarts: sums, and no text. Without it a reference begins anew.
        later: runs a call on the thread that judges.
        level: returns the level of the next window; see `Budget.spend`.
        changed: called with `on` or `off`.

    Attributes:
        p: of the last window of 500 vectors; None before it.
    """

    def __init__(
        self,
        path: Path,
        later: Callable[[Callable[[], None]], None],
        level: Callable[[], float],
        changed: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._later, self._level, self._changed, self._clock = path, later, level, changed, clock
        self._new: list[Array] = []
        self._window = deque[Array](maxlen=PARTS)
        self._sums, self._since = np.zeros((1, 1)), clock()
        self.p: float | None = None
        self.alarm_since: datetime | None = None
        try:
            with np.load(io.BytesIO(path.read_bytes())) as kept:
                self._sums, self._since = kept["sums"], float(kept["since"])
        except FileNotFoundError:
            pass
        # Catch everything: whatever the file has become, the server starts.
        except Exception:
            logger.warning("%s cannot be read: the reference of the inputs begins anew", path)

    @property
    def texts(self) -> int:
        """The number of texts of the reference."""
        return int(self._sums[0, 0])

    @property
    def collecting(self) -> bool:
        """Whether the reference still grows."""
        return self.texts < LEAST_TEXTS or self._clock() - self._since < LEAST_SECONDS

    def add(self, vector: Array) -> None:
        """Takes the vector [outputs] of one text."""
        self._new.append(vector)
        if len(self._new) == PART:
            self._later(partial(self._take, np.array(self._new, np.float64)))
            self._new = []

    def _take(self, vectors: Array) -> None:
        if self.collecting:
            ones = np.column_stack([np.ones(len(vectors)), vectors])
            self._sums = ones.T @ ones + (self._sums if self.texts else 0)
            self._save()
            return
        self._window.append(vectors.sum(axis=0))
        if len(self._window) == PARTS:
            self._judge(source_p(self._sums, np.sum(self._window, axis=0), WINDOW))

    def _judge(self, p: float) -> None:
        self.p, level = p, self._level()
        if self.alarm_since is None and p < level:
            self.alarm_since = datetime.now(UTC)
            logger.warning("the texts of all tasks are no longer like those of the reference")
            self._changed("on")
        elif self.alarm_since is not None and p >= OVER:
            self.alarm_since = None
            logger.warning("the texts of all tasks are like those of the reference again")
            self._changed("off")

    def _save(self) -> None:
        content = io.BytesIO()
        np.savez(content, sums=self._sums, since=self._since)
        try:
            write_whole(self._path, content.getvalue())
        except (OSError, StorageFull):
            logger.warning("the reference of the inputs cannot be kept")
