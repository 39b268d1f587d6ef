"""How often Python's garbage collector runs in a process that answers."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects that come more than go before the collector looks at them; Python's own number is 700. Dozens of requests
# that wait together are more than that, and none of what they hold is garbage. A look at this many takes less than a
# millisecond.
YOUNG = 10_000


def collect_seldom() -> None:
    """Has the collector pass over what exists by now, and look at what comes later less often.

    To be called when all is imported and loaded. That leaves a quarter of a million objects that never go: the
    collector would walk through all of them again and again, each time for some tenths of a second in which nothing is
    answered.
    """
    gc.freeze()
    gc.set_threshold(YOUNG)


@contextmanager
def importing() -> Iterator[None]:
    """Keeps the collector from running while large packages are imported, and has it pass over what they leave.

    Nothing of that ever goes, and the collector would walk through it dozens of times, half a second of a start.
    """
    with collecting_nothing():
        yield
        gc.freeze()


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Keeps the collector from running while millions of objects are made of which none is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
