"""Stages side by side: what one thread makes is waiting when the next thread needs it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

T = TypeVar("T")

# How often a thread that waits looks whether it is still wanted.
_LOOK_S = 0.1


class _End(Generic[T]):
    """Stands behind the last item: the error that the items ended with, if one did."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


@contextmanager
def ahead(items: Iterable[T], most: int, name: str) -> Iterator[Iterator[T]]:
    """Items as a thread of their own makes them, at most so many before they are asked for.

    The thread has ended when the block has; what the items raise is raised where they are asked for.

    Args:
        items: made on the thread, from the first to the last.
        most: how many wait.
        name: of the thread.
    """
    waiting: Queue[T | _End[T]] = Queue(most)
    unwanted = Event()

    def make() -> None:
        end = _End[T]()
        try:
            for item in items:
                if not _put(waiting, item, unwanted):
                    return
        except BaseException as error:
            end = _End[T](error)
        _put(waiting, end, unwanted)

    thread = Thread(target=make, name=name, daemon=True)
    thread.start()
    try:
        yield _taken(waiting)
    finally:
        unwanted.set()
        thread.join()


def _put(waiting: "Queue[T | _End[T]]", item: "T | _End[T]", unwanted: Event) -> bool:
    while not unwanted.is_set():
        try:
            waiting.put(item, timeout=_LOOK_S)
        except Full:
            continue
        return True
    return False


def _taken(waiting: "Queue[T | _End[T]]") -> Iterator[T]:
    while True:
        item = waiting.get()
        if not isinstance(item, _End):
            yield item
        elif item.error is not None:
            raise item.error
        else:
            return
