"""Suggests an existing name for one that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str], form: str = "{}") -> str:
    """Returns `; is X meant?` with the most similar name of `known`, ignoring case; empty if none is similar."""
    by_key = {spelled.strip().lower(): spelled for spelled in known}
    near = get_close_matches(name[:64].strip().lower(), by_key, 1)
    return did_you_mean(form.format(by_key[near[0]])) if near else ""


def did_you_mean(name: str) -> str:
    """Returns the question with which every error suggests a name."""
    return f"; is {name} meant?"
