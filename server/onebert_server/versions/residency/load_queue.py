"""Which versions wait to be loaded: requests put them in, the loader's thread takes them in turns of principals."""

import threading

from onebert_server.turns import Turns
from onebert_server.versions.version import State, Version


class LoadQueue:
    """Versions that were asked for, each principal's in their order, one of each principal in its turn; thread-safe.

    A version that several principals have asked for waits for the first of their turns, and is given out once.

    Attributes:
        closed: whether nothing is given out any more.
    """

    def __init__(self) -> None:
        self.closed = False
        self._changed = threading.Condition()
        self._turns: Turns[Version] = Turns()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def put(self, version: Version, principal: str) -> None:
        """Lets a version wait in the turns of a principal; a second call for the same two changes nothing."""
        with self._changed:
            self._turns.put(version, principal)
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Returns when a version waits, when the queue is closed, or after so many seconds."""
        with self._changed:
            if not self._turns and not self.closed:
                self._changed.wait(seconds)

    def take(self, most: int) -> list[Version]:
        """The next versions, at most so many; none once the queue is closed.

        A version whose state is no longer `loading` was given out in another principal's turn, and is left out.
        """
        taken: dict[Version, None] = {}
        with self._changed:
            while len(taken) < most and not self.closed:
                version = self._turns.take(lambda one: one not in taken and one.state is State.LOADING)
                if version is None:
                    break
                taken[version] = None
        return list(taken)

    def close(self) -> None:
        """Gives nothing out any more, and wakes who waits."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def clear(self) -> list[Version]:
        """Removes everything, and returns each version once that still has to be loaded."""
        with self._changed:
            return [version for version in self._turns.clear() if version.state is State.LOADING]
