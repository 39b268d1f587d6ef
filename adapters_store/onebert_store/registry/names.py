"""Names of tasks and aliases, and references such as `name@version` or `name@alias`."""

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass

from onebert_store.errors import InvalidInput, TaskNotFound
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import did_you_mean

LIVE = "live"

# ASCII only, so that no two names look alike and no name is a path.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_LETTERS = string.ascii_lowercase + string.digits + "._-"
# Longest name that gets a suggestion, in characters: at most 2,640 look-ups.
_MISTYPED = 32


@dataclass(frozen=True)
class TaskRef:
    """A parsed reference; exactly one of version and alias is set."""

    task: str
    version: int | None
    alias: str | None


def check_name(name: str) -> None:
    """Raises InvalidInput if the name breaks the rule for task names."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"'{printable(name)}' is not a name: 1 to 63 of a-z, 0-9, '.', '_', '-', starting with a letter or digit"
        )


def no_such_task(name: str, near: str | None = None) -> TaskNotFound:
    """Makes the error for a task that is missing or not the caller's; `near` is a similar name of the caller's."""
    return TaskNotFound(f"there is no task {name}" + (did_you_mean(near) if near else ""))


def similar(name: str) -> Iterator[str]:
    """Yields names one typing error away: a letter more, less or changed, two swapped; none above the limit."""
    for cut in range(len(name) + 1 if len(name) <= _MISTYPED else 0):
        head, tail = name[:cut], name[cut:]
        yield head + tail[1:]
        yield head + tail[1:2] + tail[:1] + tail[2:]
        for letter in _LETTERS:
            yield head + letter + tail
            yield head + letter + tail[1:]


def check_alias(alias: str) -> None:
    """Raises InvalidInput unless the name follows the rule for task names and is not all digits."""
    check_name(alias)
    if alias.isdigit():
        raise InvalidInput("an alias is not all digits: those are version numbers")


def parse_ref(text: str) -> TaskRef:
    """Parses `name` (its alias `live`), `name@3` or `name@alias`; raises InvalidInput for anything else."""
    task, at, pointer = text.partition("@")
    check_name(task)
    if _NUMBER.fullmatch(pointer):
        return TaskRef(task, int(pointer), None)
    alias = pointer if at else LIVE
    check_alias(alias)
    return TaskRef(task, None, alias)
