"""The counts of each version: one record, which metrics, status and extensions read."""

import math
import threading
import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, TypeVar

from onebert_server.observed import ABSTAINED, OTHER, FinishedRequest, Seen
from onebert_server.telemetry.paces import ABSTENTIONS, ANSWERS, BOUNDS, CUT, FADES, NONE, Pace, faded, pace_of

P = TypeVar("P")
Key = tuple[str, int]
"""A task and the number of its version."""

# Versions that are held: the last to answer. Each takes about 1 KB, without the parts of extensions.
MAX_VERSIONS = 10_000
# Bytes of all parts of extensions.
MAX_BYTES = 160 << 20
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
# Labels that a series counts, first come first served; all others are one more.
MAX_LABELS = 32
# Seconds between rankings.
RANK_EVERY = 600.0
# A version needs this multiple of a shown version's answers to replace it, so that two equal ones do not alternate.
MARGIN = 2
_ABSTAINS = (ABSTAINED,)


@dataclass(eq=False, slots=True)
class Series:
    """The counters of a version since its series began, or of all versions without a series of their own.

    Attributes:
        requests: by their seconds, between `BOUNDS`; `seconds` is their sum.
        scores: top scores between `SCORES`; `score` is their sum.
        labels: answers by label; one with several counts for each.
        cut: answers to texts of which a part was left out.
    """

    requests: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0
    scores: list[int] = field(default_factory=lambda: [0] * (len(SCORES) + 1))
    score: float = 0.0
    labels: Counter[str] = field(default_factory=Counter)
    cut: int = 0

    def copy(self) -> "Series":
        return replace(self, requests=[*self.requests], scores=[*self.scores], labels=self.labels.copy())


class VersionCounts:
    """The counts of one version.

    Attributes:
        recent: requests by their seconds, and answers, as `paces` has them; they have faded until `at`.
        series: its own series, or the one that versions without share.
        parts, sizes: what extensions hold of it, and the bytes of that, by type.
    """

    __slots__ = ("at", "parts", "recent", "series", "sizes")

    def __init__(self, at: float, series: Series) -> None:
        self.at, self.recent = at, [*NONE]
        self.series = series
        self.parts, self.sizes = dict[type, Any](), dict[type, int]()

    def fade(self, now: float) -> None:
        self.recent, self.at = faded(self.recent, now - self.at), now

    def count(self, answers: Sequence[Seen]) -> None:
        """Counts answers of a turn of the event loop, whose requests are counted."""
        recent, series = self.recent, self.series
        recent[ANSWERS] += len(answers)
        for _, labels, score, _, _, cut in answers:
            recent[ABSTENTIONS] += labels == _ABSTAINS
            recent[CUT] += cut
            series.cut += cut
            if score is not None:
                series.scores[bisect_left(SCORES, score)] += 1
                series.score += score
            for label in labels:
                known = label in series.labels or len(series.labels) < MAX_LABELS
                series.labels[label if known else OTHER] += 1


Listener = Callable[[Key, VersionCounts, Sequence[Seen]], None]
"""Gets the answers of a version that one turn of an event loop has finished, under the lock, so it must not wait."""


class AnswerCounts:
    """Holds the records of the versions that answered last; any thread may read.

    Args:
        most: the largest number of versions with series of their own.
        listeners: count what they want, in their parts of the records.

    Attributes:
        lock: held while anything is counted; whoever uses records and parts takes it.
    """

    def __init__(
        self, most: int = 0, listeners: list[Listener] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lock = threading.Lock()
        self._most = most
        self.listeners = [] if listeners is None else listeners
        self._clock = clock
        self._began = self._ranked = clock()
        # The version that answered longest ago comes first.
        self._versions = OrderedDict[Key, VersionCounts]()
        self._shown, self._other = dict[Key, Series](), Series()
        self._bytes = 0

    def count(self, requests: Sequence[FinishedRequest]) -> None:
        """Counts the requests that one turn of an event loop has finished."""
        now, answers = self._clock(), dict[Key, tuple[VersionCounts, list[Seen]]]()
        with self.lock:
            if now - self._ranked > RANK_EVERY:
                self._rank(now)
            for request in requests:
                asked, series = dict[str, VersionCounts](), set[Series]()
                for seen in request.answers:
                    key = seen.task, seen.version
                    if key not in answers:
                        answers[key] = self._answering(key, now), []
                    version, of_version = answers[key]
                    of_version.append(seen)
                    # A request with several versions of a task is one of the task, and has its time once in a series.
                    asked[seen.task] = version
                    series.add(version.series)
                bucket = bisect_left(BOUNDS, request.seconds, lo=1)
                for version in asked.values():
                    version.recent[bucket] += 1.0
                for counts in series:
                    counts.requests[bucket] += 1
                    counts.seconds += request.seconds
            for key, (version, of_version) in answers.items():
                version.count(of_version)
                for listener in self.listeners:
                    listener(key, version, of_version)
            if len(self._versions) > MAX_VERSIONS or self._bytes > MAX_BYTES:
                self._make_room()

    def paces(self, tasks: Collection[str]) -> dict[str, Pace]:
        """Returns the paces of the tasks that were asked since the start."""
        now, sums = self._clock(), dict[str, list[float]]()
        with self.lock:
            versions = [
                (key[0], counts.at, counts.recent[:]) for key, counts in self._versions.items() if key[0] in tasks
            ]
        for task, at, recent in versions:
            sums[task] = [*map(add, sums.get(task, NONE), faded(recent, now - at))]
        return {task: pace_of(recent, now - self._began) for task, recent in sums.items()}

    def series(self) -> list[tuple[tuple[str, str], Series]]:
        """Returns the series of one moment, by task and version; the last one is of all versions without their own."""
        with self.lock:
            shown = [((task, str(number)), series.copy()) for (task, number), series in self._shown.items()]
            return [*shown, ((OTHER, ""), self._other.copy())]

    def tasks(self) -> list[str]:
        """Returns the tasks whose versions have series."""
        with self.lock:
            return list(dict.fromkeys(task for task, _ in self._shown))

    def part(self, key: Key, kind: type[P]) -> P | None:
        """Returns a part of a version; the lock is held."""
        return self._versions[key].parts.get(kind) if key in self._versions else None

    def parts(self, kind: type[P]) -> list[tuple[Key, P]]:
        """Returns the parts of this type."""
        with self.lock:
            return [(key, version.parts[kind]) for key, version in self._versions.items() if kind in version.parts]

    def put(self, key: Key, part: Any, size: int) -> None:
        """Sets a part of a version that has just answered, with its size in bytes; the lock is held."""
        version = self._answering(key, self._clock())
        self._bytes += size - version.sizes.get(type(part), 0)
        version.parts[type(part)], version.sizes[type(part)] = part, size
        self._make_room()

    def _answering(self, key: Key, now: float) -> VersionCounts:
        version = self._versions.get(key)
        if version is None:
            version = self._versions[key] = VersionCounts(now, self._other)
        self._versions.move_to_end(key)
        if version.series is self._other and len(self._shown) < self._most:
            version.series = self._shown[key] = Series()
        # Once a second is exact to a third of a percent.
        if now - version.at >= 1.0:
            version.fade(now)
        return version

    def _make_room(self) -> None:
        while len(self._versions) > MAX_VERSIONS or (self._bytes > MAX_BYTES and len(self._versions) > 1):
            key, version = self._versions.popitem(last=False)
            self._bytes -= sum(version.sizes.values())
            self._shown.pop(key, None)

    def _rank(self, now: float) -> None:
        answers = {
            key: version.recent[ANSWERS] * math.exp((version.at - now) / FADES)
            for key, version in self._versions.items()
        }
        coming = sorted(answers.keys() - self._shown.keys(), key=lambda key: -answers[key])
        going = sorted(self._shown, key=lambda key: answers[key])
        for new, old in zip(coming, going, strict=False):
            if answers[new] <= MARGIN * answers[old]:
                break
            del self._shown[old]
            self._versions[old].series = self._other
            self._versions[new].series = self._shown[new] = Series()
        self._ranked = now
