"""The meaning of an alias: versions that answer its requests, with their shares, and shadows."""

from functools import lru_cache
from typing import NamedTuple


class Target(NamedTuple):
    """Today always one version with all requests, and no shadow.

    Attributes:
        numbers: the versions that compute a request, the one that answers first.
        shares: the versions that may answer, each with its share of the requests.
        shadows: versions that compute every request, and whose answers no caller gets.
        previous: the version that answered before; it may be deleted by now.
    """

    numbers: tuple[int, ...]
    shares: tuple[tuple[int, float], ...]
    shadows: tuple[int, ...]
    previous: int | None

    @property
    def version(self) -> int:
        return self.numbers[0]


# Most of a million aliases are `live` at version 1, and share one target.
@lru_cache(4096)
def target(version: int, previous: int | None = None) -> Target:
    """Returns the target of an alias of the registry, which points at one version."""
    return Target((version,), ((version, 1.0),), (), previous)
