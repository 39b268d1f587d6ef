"""How many examples of a property are drawn: all of them by `make test-all`, else a quarter."""

from hypothesis import settings


def examples(at_length: int) -> int:
    """Of a property that is tried with so many by `make test-all`."""
    return max(5, at_length * settings.default.max_examples // 100)
