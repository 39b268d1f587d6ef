"""Which versions wait to be loaded; requests put them in, the loader's thread takes them out."""

import threading
from collections import deque

from onebert_server.versions.version import Version


class LoadQueue:
    """Versions in the order in which they were asked for; thread-safe.

    Attributes:
        closed: whether nothing is given out any more.
    """

    def __init__(self) -> None:
        self.closed = False
        self._changed = threading.Condition()
        self._versions: deque[Version] = deque()

    def __bool__(self) -> bool:
        return bool(self._versions)

    def put(self, version: Version) -> None:
        """Lets a version wait."""
        with self._changed:
            self._versions.append(version)
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Returns when a version waits, when the queue is closed, or after so many seconds."""
        with self._changed:
            if not self._versions and not self.closed:
                self._changed.wait(seconds)

    def take(self, most: int) -> list[Version]:
        """The next versions, at most so many; none once the queue is closed."""
        with self._changed:
            return [] if self.closed else [self._versions.popleft() for _ in range(min(most, len(self._versions)))]

    def close(self) -> None:
        """Gives nothing out any more, and wakes who waits."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def clear(self) -> list[Version]:
        """Removes and returns everything."""
        with self._changed:
            left = list(self._versions)
            self._versions.clear()
            return left
