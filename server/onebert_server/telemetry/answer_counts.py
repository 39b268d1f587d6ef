"""The versions that answered last, with one lock and one bound for all counts of their answers."""

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

# Versions that are held. Each takes about 1 KB, without the counts of extensions.
MAX_VERSIONS = 10_000


class AnswerCounts:
    """Holds the versions that answered last; a `Slot` keeps counts of one kind for them.

    Attributes:
        lock: held while requests are counted. Slots are used under it.
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

    def _hold(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._versions.setdefault(key)
            # In each slot, too: its oldest state is found without a look at all versions.
            self._versions.move_to_end(key)
            for slot in self._slots:
                if key in slot.states:
                    slot.states.move_to_end(key)
        while len(self._versions) > MAX_VERSIONS:
            oldest, _ = self._versions.popitem(last=False)
            for slot in self._slots:
                slot.drop(oldest)


class Slot(Generic[S]):
    """States of one kind by version; the version that answered longest ago loses its state if all get too large.

    Args:
        most: the largest sum of their sizes.

    Attributes:
        states: only the slot changes them.
    """

    def __init__(self, counts: AnswerCounts, most: float = math.inf) -> None:
        self._counts = counts
        self._most = most
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
            self.drop(next(iter(self.states)))
        return state

    def drop(self, key: Key) -> None:
        if self.states.pop(key, None) is not None:
            self._size -= self._sizes.pop(key)
