"""Suggests an existing name for one that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches


def meant(name: str, there: Iterable[str], form: str = "{}") -> str:
    """Returns `; is X meant?` with the most similar name of `there`, ignoring case; empty if none is similar."""
    known = {one.strip().lower(): one for one in there}
    near = get_close_matches(name[:64].strip().lower(), known, 1)
    return is_meant(form.format(known[near[0]])) if near else ""


def is_meant(name: str) -> str:
    """Returns the question with which every error suggests a name."""
    return f"; is {name} meant?"
