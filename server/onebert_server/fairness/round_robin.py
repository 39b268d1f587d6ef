"""Principals take turns: each is served one waiting thing in its turn."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """Waiting things, which are hashable, by principal; a newcomer's turn is behind everybody's. Not thread-safe."""

    def __init__(self) -> None:
        # In the order of the turns; of each principal in the order of `put`.
        self._things = OrderedDict[str, OrderedDict[T, None]]()

    def __bool__(self) -> bool:
        return bool(self._things)

    def __iter__(self) -> Iterator[T]:
        return (thing for things in self._things.values() for thing in things)

    def put(self, thing: T, principal: str) -> None:
        """Queues a thing for a principal; once, if it waits."""
        self._things.setdefault(principal, OrderedDict())[thing] = None

    def take(self, wanted: Callable[[T], bool]) -> T | None:
        """Takes the next wanted thing; None if nothing waits. An unwanted thing is dropped and costs no turn."""
        while self._things:
            principal, things = next(iter(self._things.items()))
            thing, _ = things.popitem(last=False)
            serves = wanted(thing)
            if not things:
                del self._things[principal]
            elif serves:
                self._things.move_to_end(principal)
            if serves:
                return thing
        return None
