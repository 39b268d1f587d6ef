"""Watches the source of a base's texts: the base's own vectors of a small sample, beside the first day's same hours."""

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
from onebert_server.watching.windows import PART, PARTS
from onebert_store.disk import write_whole
from onebert_store.errors import StorageFull

logger = logging.getLogger("onebert.watch")

# The reference has at least so many texts and seconds, a whole day: its hours differ.
LEAST_TEXTS, LEAST_SECONDS = 1000, 86400.0
HOURS = 24


def hours_of(seconds: float | Array) -> Array:
    """The weights [..., 24] of the two full hours (UTC) around times in seconds since 1970; 1 together."""
    apart = np.asarray(seconds)[..., None] / 3600 - np.arange(HOURS)
    return np.asarray(np.maximum(0.0, 1 - np.abs((apart + HOURS / 2) % HOURS - HOURS / 2)))


def source_p(sums: Array, total: Array) -> float:
    """The probability of a mean this far from the reference's of the same hours by chance.

    The reference's mean moves linearly from one full hour to the next: a multivariate regression, with Hotelling's T²
    of its prediction (Johnson and Wichern 2007, section 7.7).

    Args:
        sums: [24 + outputs, 24 + outputs], the sum of x xᵀ over the reference's texts, x being hours and vector.
        total: [24 + outputs], the sum of x over the live texts.
    """
    from scipy.stats import f  # noqa: PLC0415 - slow to import

    hours, across, squares = sums[:HOURS, :HOURS], sums[:HOURS, HOURS:], sums[HOURS:, HOURS:]
    texts, count = hours.sum(), total[:HOURS].sum()
    # Each hour has one more text, of the day's mean: an hour that the reference has not seen is hardly compared.
    known = np.linalg.inv(hours + np.eye(HOURS))
    means = known @ (across + across.sum(axis=0) / texts)
    crossed = means.T @ across
    left = squares - crossed - crossed.T + means.T @ hours @ means
    spread, directions = np.linalg.eigh(left / (texts - HOURS))
    # A base may not vary in all directions.
    varying = spread > spread[-1] * 1e-9
    at = total[:HOURS] / count
    moved = (total[HOURS:] / count - at @ means) @ directions[:, varying]
    squared = (moved**2 / spread[varying]).sum() / (1 / count + at @ known @ at)
    outputs = int(varying.sum())
    free = texts - HOURS - outputs + 1
    # Doubled: vectors of real texts have heavier tails, and p-values under 0.01 come 1.5 times as often as by F.
    return min(1.0, 2 * float(f.sf(squared * free / (outputs * (texts - HOURS)), outputs, free)))


class Inputs:
    """The vectors of one base's texts. The engine's thread adds them, `later` runs the rest; any thread may read.

    Args:
        path: file that keeps the reference over restarts: sums, and no text. Without it a reference begins anew.
        outputs: the length of the vectors; a file with others is no reference.
        later: runs a call on the thread that judges.
        level: returns the level of the next window; see `Budget.spend`.
        changed: called with `on` or `off`.

    Attributes:
        p: of the last window of 500 vectors; None before it.
    """

    def __init__(
        self,
        path: Path,
        outputs: int,
        later: Callable[[Callable[[], None]], None],
        level: Callable[[], float],
        changed: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._later, self._level, self._changed, self._clock = path, later, level, changed, clock
        self._new: list[Array] = []
        self._window = deque[Array](maxlen=PARTS)
        self._sums, self._since = np.zeros((HOURS + outputs, HOURS + outputs)), clock()
        self.p: float | None = None
        self.alarm_since: datetime | None = None
        try:
            with np.load(io.BytesIO(path.read_bytes())) as kept:
                self._begin(kept["sums"], float(kept["since"]))
        except FileNotFoundError:
            pass
        # Catch everything: whatever the file has become, the server starts.
        except Exception:
            logger.warning("%s cannot be read: the reference of the inputs begins anew", path)

    @property
    def texts(self) -> int:
        """The number of texts of the reference."""
        return round(float(self._sums[:HOURS, :HOURS].sum()))

    @property
    def collecting(self) -> bool:
        """Whether the reference still grows."""
        return self.texts < LEAST_TEXTS or self._clock() - self._since < LEAST_SECONDS

    def add(self, vector: Array) -> None:
        """Takes the vector [outputs] of one text."""
        self._new.append(np.concatenate([hours_of(self._clock()), vector]))
        if len(self._new) == PART:
            self._later(partial(self._take, np.array(self._new, np.float64)))
            self._new = []

    def _begin(self, sums: Array, since: float) -> None:
        if sums.shape != self._sums.shape or not np.isfinite(sums).all():
            raise ValueError("not a reference of these vectors")
        self._sums, self._since = sums, since

    def _take(self, vectors: Array) -> None:
        if self.collecting:
            self._sums = self._sums + vectors.T @ vectors
            self._save()
            return
        self._window.append(vectors.sum(axis=0))
        if len(self._window) == PARTS:
            self._judge(source_p(self._sums, np.sum(self._window, axis=0)))

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
