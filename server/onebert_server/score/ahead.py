"""Stages side by side: what one thread makes is waiting when the next thread needs it."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def ahead(items: Iterable[T], most: int, name: str) -> Iterator[Iterator[T]]:
    """Items as a thread of their own makes them, at most so many before they are asked for.

    The thread has ended when the block has; what the items raise is raised where they are asked for.

    Args:
        items: made on the thread, from the first to the last.
        most: how many are made or wait.
        name: of the thread.
    """
    making = map(_just, items)
    with ThreadPoolExecutor(1, name) as thread:
        coming = deque(thread.submit(next, making, None) for _ in range(most))

        def taken() -> Iterator[T]:
            while (made := coming.popleft().result()) is not None:
                coming.append(thread.submit(next, making, None))
                yield made[0]

        try:
            yield taken()
        finally:
            for one in coming:
                one.cancel()


def _just(item: T) -> tuple[T]:
    """Tells an item from the end of all."""
    return (item,)
