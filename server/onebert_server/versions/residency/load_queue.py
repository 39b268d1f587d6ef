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
        self._turns: Turns[tuple[Version, str]] = Turns()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def put(self, version: Version, principal: str) -> None:
        """Lets a version wait in the turns of a principal; a second call for the same two changes nothing."""
        with self._changed:
            self._turns.put((version, principal), principal)
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Returns when a version waits, when the queue is closed, or after so many seconds."""
        with self._changed:
            if not self._turns and not self.closed:
                self._changed.wait(seconds)

    def take(self, most: int) -> dict[Version, str]:
        """The next versions, at most so many, each with whose turn it was; none once the queue is closed.

        A version whose state is no longer `loading` was given out in another principal's turn, and is left out.
        """
        taken: dict[Version, str] = {}
        with self._changed:
            while len(taken) < most and not self.closed:
                turn = self._turns.take(lambda one: one[0] not in taken and one[0].state is State.LOADING)
                if turn is None:
                    break
                taken.update([turn])
        return taken

    def close(self) -> None:
        """Gives nothing out any more, and wakes who waits."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def clear(self) -> list[Version]:
        """Removes everything, and returns each version once that still has to be loaded."""
        with self._changed:
            return list(dict.fromkeys(one for one, _ in self._turns.clear() if one.state is State.LOADING))
