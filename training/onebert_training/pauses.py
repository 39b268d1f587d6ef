"""Points in a long computation at which a process that computes for many callers may serve another one first."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_at_pause: ContextVar[Callable[[], None]] = ContextVar("_at_pause", default=lambda: None)


def pause() -> None:
    """Comes between steps, batches and fits; raises what the caller's function raises to end the computation."""
    _at_pause.get()()


@contextmanager
def calling_at_pauses(function: Callable[[], None]) -> Iterator[None]:
    """Calls a function at each pause of what the block computes."""
    token = _at_pause.set(function)
    try:
        yield
    finally:
        _at_pause.reset(token)
