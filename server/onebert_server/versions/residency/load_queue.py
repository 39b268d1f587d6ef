"""The versions that wait for loading: requests add them, the loader's thread takes them fairly by principal."""

import threading

from onebert_server.fairness.places import RoundRobin
from onebert_server.versions.version import State, Version


class LoadQueue:
    """Requested versions, thread-safe; a version that several principals want waits for the first of their turns."""

    def __init__(self) -> None:
        self.closed = False
        self._changed = threading.Condition()
        self._waiting: RoundRobin[tuple[Version, str]] = RoundRobin()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, version: Version, principal: str) -> None:
        """Queues a version for a principal; a second call for the same two changes nothing."""
        with self._changed:
            self._waiting.put((version, principal), principal)
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        with self._changed:
            if not self and not self.closed:
                self._changed.wait(seconds)

    def take(self, limit: int) -> dict[Version, str]:
        """Takes the next versions, each with its principal; skips versions that were taken for another principal."""
        taken: dict[Version, str] = {}
        with self._changed:
            while len(taken) < limit and not self.closed:
                entry = self._waiting.take(lambda new: new[0] not in taken and new[0].state is State.LOADING)
                if entry is None:
                    break
                taken.update([entry])
        return taken

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify()

    def clear(self) -> list[Version]:
        """Removes everything, and returns, once, each version that still has to be loaded."""
        with self._changed:
            waiting, self._waiting = self._waiting, RoundRobin()
            return list(dict.fromkeys(version for version, _ in waiting if version.state is State.LOADING))
