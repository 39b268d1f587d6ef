"""Tunes Python's garbage collector for a process that answers requests."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects, minus freed ones, that trigger a collection; Python's default is 700. A few dozen waiting requests exceed
# 700 and contain no garbage. A collection at this number takes less than a millisecond.
YOUNG = 10_000


def collect_seldom() -> None:
    """Freezes all objects that exist now, and makes collections of new objects rarer.

    Call it after all imports and loading. About 250,000 objects live as long as the process; the collector would walk
    all of them again and again, and each walk would block all answers for some tenths of a second.
    """
    gc.freeze()
    gc.set_threshold(YOUNG)


@contextmanager
def importing() -> Iterator[None]:
    """Pauses the collector while large packages are imported, then freezes their objects.

    These objects are never freed; walking them dozens of times would take half a second of a start.
    """
    with collecting_nothing():
        yield
        gc.freeze()


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Pauses the collector while millions of objects are created that all stay in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
