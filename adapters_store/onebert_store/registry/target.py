"""The meaning of an alias: the versions that answer its requests, with their shares, and shadows; what a move needs."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Self

from onebert_store.errors import InvalidInput
from onebert_store.file.strict_json import printable

# Versions and shadows of one target.
MAX_VERSIONS = 16

_DENSE = (",", ":")
_STICKY = re.compile(r"principal|header:[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# Headers whose value changes with every token, session or request: one user would see one version after the other.
_PASSING = {"authorization", "proxy-authorization", "cookie", "x-request-id", "traceparent", "tracestate"}


class Shadow(NamedTuple):
    """A version that computes this percentage of an alias's requests, and whose answers no caller gets."""

    version: int
    percent: int


class Target(NamedTuple):
    """The whole meaning of an alias.

    Attributes:
        shares: the versions that may answer, ascending, each with its percentage of the requests; 100 together.
        sticky: the key that chooses the version: `principal`, or the value of `header:NAME`; None: chance chooses.
        shadows: by version, ascending.
    """

    shares: tuple[tuple[int, int], ...]
    sticky: str | None = None
    shadows: tuple[Shadow, ...] = ()

    @property
    def version(self) -> int:
        """The version with the largest share; of equal ones the oldest."""
        return max(self.shares, key=lambda share: share[1])[0]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Every version that the alias needs."""
        return tuple(version for version, _ in (*self.shares, *self.shadows))

    @property
    def candidates(self) -> tuple[int, ...]:
        """The candidates of verdicts: every version but the one with the largest share."""
        return tuple(number for number in self.numbers if number != self.version)

    @property
    def tag(self) -> str:
        """Differs from the tag of every other target; of one version alone it is the number."""
        text = self.dumps()
        return str(self.version) + (f".{hashlib.sha256(text.encode()).hexdigest()[:16]}" if text else "")

    def dumps(self) -> str | None:
        """The target as JSON for the registry; None for one version alone."""
        return None if self == alone(self.version) else json.dumps(self, separators=_DENSE)

    @classmethod
    def loads(cls, text: str) -> Self:
        """Reads what `dumps` wrote."""
        return cls._of(json.loads(text))

    @classmethod
    def _of(cls, parts: list[Any]) -> Self:
        # An older store may have a fourth part, `decide`, which means nothing now.
        shares, sticky, shadows = parts[:3]
        return cls(tuple((n, share) for n, share in shares), sticky, tuple(Shadow(*shadow) for shadow in shadows))


class Precondition(NamedTuple):
    """The facts that a check of a move has read; the alias moves only if they still hold.

    Attributes:
        name, content: a document of the task; None: there is none.
        tags: tags of other aliases of the task by their names; None: there is no such alias.
    """

    name: str
    content: str | None
    tags: Mapping[str, str | None]


# Most of a million aliases are `live` at version 1, and share one target.
@lru_cache(4096)
def alone(version: int) -> Target:
    """The target of one version that answers everything."""
    return Target(((version, 100),))


def dump_targets(targets: Sequence[Target]) -> str | None:
    """Several targets as JSON for the registry, one version alone as its number; None for no target."""
    parts = [target.version if target == alone(target.version) else target for target in targets]
    return json.dumps(parts, separators=_DENSE) if parts else None


def load_targets(text: str | None) -> tuple[Target, ...]:
    """Reads what `dump_targets` wrote."""
    parts = json.loads(text) if text else ()
    return tuple(alone(part) if isinstance(part, int) else Target._of(part) for part in parts)


def check_target(target: Target) -> None:
    """Raises InvalidInput if the shares, the shadows or the source of stickiness break a rule."""
    numbers, shares = target.numbers, [share for _, share in target.shares]
    if len(set(numbers)) < len(numbers):
        raise InvalidInput("a version stands twice in the target: as a share or as a shadow, once")
    if len(numbers) > MAX_VERSIONS:
        raise InvalidInput(f"a target has at most {MAX_VERSIONS} versions, shadows included")
    if sum(shares) != 100 or not all(0 < percent <= 100 for percent in shares):
        raise InvalidInput("the shares of a split are whole percentages above 0, and 100 together")
    if not all(0 < shadow.percent <= 100 for shadow in target.shadows):
        raise InvalidInput("a shadow computes 1 to 100 percent of the requests")
    if target.sticky is not None and not _STICKY.fullmatch(target.sticky):
        raise InvalidInput(f"sticky is principal or header:NAME, not {printable(target.sticky, 80)!r}")
    if target.sticky is not None and target.sticky.removeprefix("header:").lower() in _PASSING:
        raise InvalidInput(f"the value of {target.sticky} changes for one user; take principal, or another header")
    if target.sticky is not None and len(shares) < 2:
        raise InvalidInput("sticky is for a split: all requests go to one version here")
