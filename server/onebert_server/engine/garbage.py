"""Tunes Python's garbage collector for a process that answers requests."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects, minus freed ones, that trigger a collection; Python's default is 700. A few dozen waiting requests exceed
# 700 and contain no garbage. A collection at this number takes less than a millisecond.
YOUNG = 10_000


def collect_seldom() -> None:
    """Freezes the objects that exist after all imports and loading, and makes later collections rarer.

    The collector would walk these 250,000 objects, which live as long as the process, again and again; each walk would
    block all answers for some tenths of a second.
    """
    gc.freeze()
    gc.set_threshold(YOUNG)


@contextmanager
def importing() -> Iterator[None]:
    """Pauses the collector during large imports, then freezes their objects: this saves half a second of a start."""
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
