"""Suggests a name that is there for one that is not."""

from collections.abc import Iterable
from difflib import get_close_matches


def meant(name: str, there: Iterable[str], form: str = "{}") -> str:
    """`; is X meant?`, with the name most like the one that was given; empty where none is like it.

    Args:
        name: what was given; its case is passed over.
        there: the names that are there.
        form: how the suggestion is written.
    """
    known = {one.strip().lower(): one for one in there}
    near = get_close_matches(name[:64].strip().lower(), known, 1)
    return is_meant(form.format(known[near[0]])) if near else ""


def is_meant(name: str) -> str:
    """The question by which every error suggests a name."""
    return f"; is {name} meant?"
