"""The versions that answered last, with one lock, one bound and one rename for all counts of their answers."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from onebert_server.observed import Seen

S = TypeVar("S")
Key = tuple[str, int]
"""A task and the number of its version."""


class RequestAnswers(NamedTuple):
    """The answers of a finished request, and its seconds."""

    answers: Sequence[Seen]
    seconds: float


Listener = Callable[[Sequence[RequestAnswers]], None]
"""Gets the requests that one turn of an event loop has finished, while the lock is held, so it must not wait."""
Left = Callable[[Key, S, str], None]
"""Gets a key whose state leaves it, the state and the reason, while the lock is held."""

# Versions that are held. Each takes about 1 KB, without the counts of extensions.
MAX_VERSIONS = 10_000

RENAMED = "its task is renamed"
EVICTED = "other versions have answered since"


class AnswerCounts:
    """Holds the versions that answered last; a `Slot` keeps counts of one kind for them.

    Attributes:
        lock: held while requests are counted and while versions are renamed. Slots are used under it.
        listeners: count requests in their slots.
    """

    def __init__(self, listeners: list[Listener] | None = None) -> None:
        self.lock = threading.Lock()
        self.listeners = [] if listeners is None else listeners
        self._slots: list[Slot[Any]] = []
        # The version that answered longest ago comes first.
        self._versions = OrderedDict[Key, None]()

    def count(self, requests: Sequence[RequestAnswers]) -> None:
        """Counts finished requests."""
        keys = dict[Key, None]()
        for request in requests:
            for seen in request.answers:
                key = seen.task, seen.version
                # Last, where it is there already: the version that answers last is held longest.
                keys.pop(key, None)
                keys[key] = None
        with self.lock:
            self._hold(keys)
            for listener in self.listeners:
                listener(requests)

    def rename(self, task: str, name: str) -> None:
        """Goes on with a task under its new name, as if it had just answered; a task of that name before ends."""
        with self.lock:
            for key in [key for key in self._versions if key[0] == name]:
                self._drop(key, RENAMED)
            for key in [key for key in self._versions if key[0] == task]:
                states, renamed = self._drop(key, RENAMED), (name, key[1])
                self._hold([renamed])
                for slot, state, size in states:
                    slot.put(renamed, state, size)

    def _hold(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._versions.setdefault(key)
            # In each slot, too: its oldest state is found without a look at all versions.
            self._versions.move_to_end(key)
            for slot in self._slots:
                if key in slot.states:
                    slot.states.move_to_end(key)
        while len(self._versions) > MAX_VERSIONS:
            self._drop(next(iter(self._versions)), EVICTED)

    def _drop(self, key: Key, reason: str) -> list[tuple["Slot[Any]", Any, int]]:
        del self._versions[key]
        return [(slot, *dropped) for slot in self._slots if (dropped := slot.drop(key, reason)) is not None]


class Slot(Generic[S]):
    """States of one kind by version; the version that answered longest ago loses its state if all get too large.

    Args:
        most: the largest sum of their sizes.
        left: called when a state leaves its key; after a rename it goes on under the new one.

    Attributes:
        states: only the slot changes them.
    """

    def __init__(self, counts: AnswerCounts, most: float = math.inf, left: Left[S] = lambda *_: None) -> None:
        self._counts = counts
        self._most = most
        self._left = left
        self.states = OrderedDict[Key, S]()
        self._sizes: dict[Key, int] = {}
        self._size = 0
        counts._slots.append(self)

    def put(self, key: Key, state: S, size: int = 1) -> S:
        """Sets the state of a version that has just answered."""
        self._counts._hold([key])
        self._size += size - self._sizes.get(key, 0)
        self.states[key], self._sizes[key] = state, size
        while self._size > self._most and len(self.states) > 1:
            self.drop(next(iter(self.states)), EVICTED)
        return state

    def drop(self, key: Key, reason: str) -> tuple[S, int] | None:
        """Returns the state that was there, and its size."""
        if key not in self.states:
            return None
        state, size = self.states.pop(key), self._sizes.pop(key)
        self._size -= size
        self._left(key, state, reason)
        return state, size
