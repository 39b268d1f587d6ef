"""The names of tasks and aliases, and what `name@version` or `name@alias` refers to."""

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass

from onebert_store.errors import InvalidInput, TaskNotFound
from onebert_store.file.strict_json import shown
from onebert_store.meant import is_meant

LIVE = "live"

# ASCII only, so that no two names look alike and no name is a path.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_LETTERS = string.ascii_lowercase + string.digits + "._-"
# Characters of a name for which a suggestion is looked for: at most 2,640 look-ups.
_MISTYPED = 32


@dataclass(frozen=True)
class TaskRef:
    """What `name`, `name@3` or `name@alias` means; exactly one of version and alias is set."""

    task: str
    version: int | None
    alias: str | None


def check_name(name: str) -> None:
    """Refuses what is not the name of a task.

    Raises:
        InvalidInput: the name breaks the rule.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"'{shown(name)}' is not a name: 1 to 63 of a-z, 0-9, '.', '_', '-', starting with a letter or digit"
        )


def no_such_task(name: str, near: str | None = None) -> TaskNotFound:
    """The one error for a task that there is not, or not for who asks: nothing in it tells these two apart.

    Args:
        name: of the task.
        near: a task that who asks may have meant, and sees.
    """
    return TaskNotFound(f"there is no task {name}" + (is_meant(near) if near else ""))


def similar(name: str) -> Iterator[str]:
    """Texts that a name may have been mistyped for: with one letter more, less or other, or with two exchanged.

    They are as many however many names there are; for the longest names there are none.
    """
    for cut in range(len(name) + 1 if len(name) <= _MISTYPED else 0):
        head, tail = name[:cut], name[cut:]
        yield head + tail[1:]
        yield head + tail[1:2] + tail[:1] + tail[2:]
        for letter in _LETTERS:
            yield head + letter + tail
            yield head + letter + tail[1:]


def check_alias(alias: str) -> None:
    """Refuses what is not the name of an alias: the rule of task names, and not all digits.

    Raises:
        InvalidInput: the name breaks the rule.
    """
    check_name(alias)
    if alias.isdigit():
        raise InvalidInput("an alias is not all digits: those are version numbers")


def parse_ref(text: str) -> TaskRef:
    """Reads `name` (its alias `live`), `name@3` or `name@alias`.

    Raises:
        InvalidInput: the text is none of the three.
    """
    task, at, pointer = text.partition("@")
    check_name(task)
    if _NUMBER.fullmatch(pointer):
        return TaskRef(task, int(pointer), None)
    alias = pointer if at else LIVE
    check_alias(alias)
    return TaskRef(task, None, alias)
