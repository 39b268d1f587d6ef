"""Watches versions: counts their answers, judges full windows on a thread of its own, turns alarms on and off."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_server.extensions.watching.alarms import LEAST_ANSWERS, OVER, Budget, Judged, cause_of, judge, shift_of
from onebert_server.extensions.watching.statistics import Shift
from onebert_server.extensions.watching.windows import Live, Window
from onebert_server.observed import Seen
from onebert_server.telemetry.answer_counts import AnswerCounts, Key, Slot
from onebert_store.errors import OneBertError
from onebert_store.file.manifest import Manifest

logger = logging.getLogger("onebert.watch")

# Labels of all watched versions. One takes under a kilobyte, in tasks of very many 200 bytes; the versions that
# `AnswerCounts` holds take 43 MB with four labels each.
MAX_LABELS = 200_000
# While so many windows wait for the thread, versions that are not watched yet stay so.
_MOST_WAITING = 1000
# Seconds between checks for alarms of versions that nothing asks any more.
CHECK_EVERY = 30.0


class Versions(Protocol):
    """The registered versions, as the watch needs them; may block."""

    def manifest_of(self, task: str, version: int) -> Manifest:
        """Raises OneBertError."""

    def is_aliased(self, task: str, version: int) -> bool:
        """Whether an alias means this version now."""


@dataclass(eq=False, slots=True)
class Watched:
    """A version that has answered.

    Attributes:
        judged: the last full window beside the reference; None below 200 answers.
        alarm_since: None while there is no alarm.
    """

    window: Window
    judged: Judged | None = None
    alarm_since: datetime | None = None

    @property
    def shift(self) -> Shift | None:
        """Estimates from the window of `judged`; None without it, or with too few rows by right label."""
        return None if self.judged is None else shift_of(self.window.reference, self.judged.live)


class Watch(Collector):
    """Watches every version that answers and has a reference: the event loop counts, a thread of its own judges.

    Answers before a manifest is read, some milliseconds, are not counted. Windows begin anew with each start.

    Args:
        counts: holds the watched versions.
        false_alarms: how many a month all versions together may raise.
        shown: at most this many alarms have series of their own.
        changed: called with `on` or `off`, task, version, and the cause if it is known.
    """

    def __init__(
        self,
        counts: AnswerCounts,
        false_alarms: float,
        versions: Versions,
        shown: int,
        changed: Callable[[str, str, int, str | None], None],
    ) -> None:
        self._budget = Budget(false_alarms)
        self._versions = versions
        self._shown = shown
        self._changed = changed
        # A state may leave its version while the thread is starting its alarm, so its end waits for the thread.
        self._watched: Slot[Watched] = Slot(counts, MAX_LABELS, self._end_later)
        self._beginning = set[Key]()
        # Never held while a registry is read.
        self._lock = counts.lock
        self._waiting = SimpleQueue[Callable[[], None] | None]()
        self._thread = threading.Thread(target=self._run, name="onebert-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def count(self, answers: Sequence[Seen], _: float) -> None:
        """Counts the answers of one request that may be compared with a reference; the lock is held."""
        for answer in answers:
            if answer.comparable:
                self._count(answer)

    def get(self, task: str, version: int) -> Watched | None:
        """Returns what is known of a version; None if it has not answered since the start."""
        with self._lock:
            return self._watched.get((task, version))

    def alarms(self) -> list[Key]:
        """Returns the versions whose alarm is on."""
        with self._lock:
            return [key for key, watched in self._watched.items() if watched.alarm_since is not None]

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples; the registry reads their names."""
        return _families()

    def collect(self) -> Iterable[Metric]:
        """One sample for each alarm that is on, and their number."""
        on = self.alarms()
        by_task, number = families = _families()
        for task, version in on[: self._shown]:
            by_task.add_metric([task, str(version)], 1)
        number.add_metric([], len(on))
        return families

    def _count(self, answer: Seen) -> None:
        key = answer.task, answer.version
        watched = self._watched.get(key)
        if watched is not None:
            if (live := watched.window.add(answer.labels, answer.score)) is not None:
                self._waiting.put(partial(self._take, key, watched, live))
        elif key not in self._beginning and self._waiting.qsize() <= _MOST_WAITING:
            self._beginning.add(key)
            self._waiting.put(partial(self._begin, key))

    def _run(self) -> None:
        checked_at = time.monotonic()
        while True:
            try:
                with suppress(Empty):
                    if (item := self._waiting.get(timeout=CHECK_EVERY)) is None:
                        return
                    item()
                if time.monotonic() - checked_at > CHECK_EVERY:
                    self._drop_unused()
                    checked_at = time.monotonic()
            # Catch everything: without this thread nothing is watched any more.
            except Exception as error:
                logger.error("a version is not judged: %s", type(error).__name__)

    def _take(self, key: Key, watched: Watched, live: Live) -> None:
        # An alarm of an evicted version would never end.
        if live.answers >= LEAST_ANSWERS and self.get(*key) is watched and self._versions.is_aliased(*key):
            self._judge(key, watched, live)

    def _begin(self, key: Key) -> None:
        # Without its manifest (the registry is away, or the task has just been renamed) the next answer asks again.
        try:
            with suppress(OneBertError):
                manifest = self._versions.manifest_of(*key)
                if manifest.reference is not None:
                    watched = Watched(Window(manifest, manifest.reference))
                    with self._lock:
                        if self._watched.get(key) is None:
                            self._watched.put(key, watched, watched.window.labels)
        finally:
            self._beginning.discard(key)

    def _judge(self, key: Key, watched: Watched, live: Live) -> None:
        watched.judged = judged = judge(watched.window.reference, live)
        level = self._budget.spend()
        if watched.alarm_since is None and judged.p < level:
            watched.alarm_since = datetime.now(UTC)
            cause = cause_of(watched.shift)
            logger.warning("%s@%d: its answers are no longer like its reference, cause: %s", *key, cause or "not known")
            self._changed("on", *key, cause)
        elif watched.alarm_since is not None and judged.p >= OVER:
            self._end(key, watched, "its answers are like its reference again")

    def _drop_unused(self) -> None:
        """Ends alarms of versions that no alias means any more: nothing may ask them ever again."""
        for key in self.alarms():
            watched = self.get(*key)
            if watched is not None and not self._versions.is_aliased(*key):
                self._end(key, watched, "no alias means it any more")

    def _end_later(self, key: Key, watched: Watched, reason: str) -> None:
        self._waiting.put(partial(self._end, key, watched, reason))

    def _end(self, key: Key, watched: Watched, reason: str) -> None:
        if watched.alarm_since is None:
            return
        watched.alarm_since = None
        logger.warning("%s@%d: the alarm is off, %s", *key, reason)
        self._changed("off", *key, None)


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("onebert_task_alarm", "1 while this version's alarm is on.", labels=["task", "version"]),
        GaugeMetricFamily("onebert_alarms", "Watched versions whose alarm is on."),
    )
