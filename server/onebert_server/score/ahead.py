"""Runs pipeline stages side by side: a thread produces a few items ahead of the thread that consumes them."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def ahead(items: Iterable[T], most: int, name: str) -> Iterator[Iterator[T]]:
    """Items from a thread that ends with the block, at most `most` ahead; the consumer gets their exceptions."""
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
    """Wraps an item, so that None marks the end."""
    return (item,)
