"""Watches versions: counts their answers, judges full windows on a thread of its own, turns alarms on and off."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_server.extensions.watching.alarms import level_of
from onebert_server.extensions.watching.kept import KeptAlarm, WatchDocuments
from onebert_server.extensions.watching.watched import Watched
from onebert_server.extensions.watching.windows import Segment
from onebert_server.observed import Seen
from onebert_server.telemetry.counts import AnswerCounts, Key, VersionCounts
from onebert_server.versions.directory import Directory
from onebert_server.versions.manifests import Manifests
from onebert_store.errors import NotFound, OneBertError
from onebert_store.file.reference import FOLDS
from onebert_store.file.strict_json import printable

logger = logging.getLogger("onebert.watch")

# Bytes of a watched version, and of each label of one with very many.
_BYTES, _LABEL_BYTES = 13_500, 200
# While so many parts wait for the thread, further ones are dropped, and versions that are not watched yet stay so.
_MOST_WAITING = 1000
# Seconds between checks for alarms of versions that nothing asks any more.
CHECK_EVERY = 30.0


class Watch(Collector):
    """Watches every version that answers: the event loop counts, a thread of its own reads, judges and writes.

    Answers before a manifest is read, some milliseconds, are not counted. Windows begin anew with each start; learned
    references and alarms do not.

    Args:
        counts: holds the watched versions.
        false_alarms: see `level_of`.
        documents: what the store keeps.
        shown: at most this many alarms have series of their own.
        changed: called with `on` or `off`, task, version, and of an alarm that goes on with `Watched.change`.
    """

    def __init__(
        self,
        counts: AnswerCounts,
        false_alarms: float,
        documents: WatchDocuments,
        directory: Directory,
        manifests: Manifests,
        shown: int,
        changed: Callable[[str, str, int, Mapping[str, Any]], None],
    ) -> None:
        self._level = level_of(false_alarms)
        self._documents = documents
        self._directory = directory
        self._manifests = manifests
        self._shown = shown
        self._changed = changed
        self._counts = counts
        self._beginning = set[Key]()
        self._waiting = SimpleQueue[Callable[[], None] | None]()
        self._thread = threading.Thread(target=self._run, name="onebert-watch", daemon=True)

    def start(self) -> None:
        self._waiting.put(self._resume)
        self._thread.start()

    def close(self) -> None:
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def count(self, key: Key, version: VersionCounts, answers: Sequence[Seen]) -> None:
        """Counts the answers that may be compared with a reference; the lock is held."""
        watched, has_room = version.parts.get(Watched), self._waiting.qsize() <= _MOST_WAITING
        if watched is not None:
            for part in watched.count(answers):
                if has_room:
                    self._waiting.put(partial(self._take, key, watched, part))
        elif has_room and key not in self._beginning and any(answer.text is not None for answer in answers):
            self._beginning.add(key)
            self._waiting.put(partial(self._begin, key))

    def get(self, task: str, version: int) -> Watched | None:
        """Returns what is known of a version; None if it has not answered since the start."""
        with self._counts.lock:
            return self._counts.part((task, version), Watched)

    def read(self, task: str, version: int) -> Watched:
        """Returns a version with what the store has of it; blocks. Raises NotFound and StorageUnavailable."""
        manifest = self._manifests.find(task, version)
        reference = manifest.reference
        if reference is None or reference.split == FOLDS:
            reference = self._documents.reference((task, version))
        watched = Watched(manifest.labels, reference)
        alarm = self._documents.alarm((task, version))
        if alarm is not None:
            watched.resume(alarm.since, alarm.live)
        return watched

    def alarms(self) -> list[Key]:
        """Returns the versions whose alarm is on."""
        return [key for key, watched in self._counts.parts(Watched) if watched.alarm_since is not None]

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

    def _resume(self) -> None:
        for key in self._documents.alarms():
            self._begin(key)

    def _begin(self, key: Key) -> None:
        # Without its manifest (the registry is away) the next answer asks again.
        try:
            with suppress(OneBertError):
                watched = self.read(*key)
                # The registry is not read under the lock.
                with self._counts.lock:
                    if self._counts.part(key, Watched) is None:
                        self._counts.put(key, watched, _BYTES + _LABEL_BYTES * len(watched.labels))
        finally:
            self._beginning.discard(key)

    def _take(self, key: Key, watched: Watched, part: Segment) -> None:
        if self.get(*key) is not watched or not self._directory.is_aliased(*key):
            return
        if watched.learns:
            watched.reference = self._documents.learn(key, part)
            return
        on = watched.judge(part, self._level)
        if on and watched.judged is not None and watched.alarm_since is not None:
            change = watched.change()
            logger.warning("%s@%d: its answers are no longer like its reference: %s", *key, _sentence(change))
            self._changed("on", *key, change)
            self._documents.set_alarm(key, KeptAlarm.of(watched.alarm_since, watched.judged.live))
        elif on is False:
            self._end(key, "its answers are like its reference again")

    def _drop_unused(self) -> None:
        """Ends alarms of versions that no alias means any more: nothing may ask them ever again."""
        for key in self.alarms():
            watched = self.get(*key)
            if watched is not None and not self._directory.is_aliased(*key):
                watched.alarm_since = None
                self._end(key, "no alias means it any more")

    def _end(self, key: Key, reason: str) -> None:
        logger.warning("%s@%d: the alarm is off, %s", *key, reason)
        self._changed("off", *key, {})
        # A version that was deleted has none.
        with suppress(NotFound):
            self._documents.set_alarm(key, None)


def _sentence(change: Mapping[str, Any]) -> str:
    moved = [
        f"{printable(share['label'], 40)} {share['reference']:.1%} -> {share['live']:.1%}" for share in change["labels"]
    ]
    if scores := change["scores"]:
        moved.append(f"mean top score {scores['reference']:.3f} -> {scores['live']:.3f}")
    return f"{change['words']}: {', '.join(moved)}; {change['repeats']} repeats left out"


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("onebert_task_alarm", "1 while this version's alarm is on.", labels=["task", "version"]),
        GaugeMetricFamily("onebert_alarms", "Watched versions whose alarm is on."),
    )
