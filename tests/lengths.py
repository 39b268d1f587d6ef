"""How many examples of a property are drawn: a quarter of them before a landing, all of them in the night."""

from hypothesis import settings


def examples(at_length: int) -> int:
    """Of a property that is tried with so many in the night."""
    return max(5, at_length * settings.default.max_examples // 100)
