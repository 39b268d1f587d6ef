"""Which version of a split answers a request: by its caller's key as Unleash's gradual rollout, or at random."""

import random
from collections.abc import Callable
from itertools import accumulate

from onebert_store.registry.target import Target

KeyOf = Callable[[str | None], bytes | None]
"""Returns a request's key by a target's `sticky`; None for a choice at random."""

_MASK = 0xFFFFFFFF


def at_random(_: str | None) -> None:
    """The KeyOf of a request without any key."""


def chosen(target: Target, task: str, key_of: KeyOf) -> int:
    """Returns the version that answers.

    The newest version takes the lowest places of 100: who is answered by it at 5 percent is at 50 percent, too.
    """
    if len(target.shares) == 1:
        return target.shares[0][0]
    key = key_of(target.sticky)
    place = random_percentile() if key is None else place_of(task, key)
    newest_first = target.shares[::-1]
    below = accumulate(share for _, share in newest_first)
    return next(version for (version, _), bound in zip(newest_first, below, strict=True) if place <= bound)


def random_percentile() -> int:
    """A random place, 1 to 100."""
    return random.randrange(100) + 1  # noqa: S311 - no secret


def place_of(group: str, key: bytes) -> int:
    """The place of a key, 1 to 100: MurmurHash3 of `group:key`, as Unleash's `normalizedStrategyValue`."""
    return murmur3(b"%b:%b" % (group.encode(), key)) % 100 + 1


def murmur3(data: bytes) -> int:
    """MurmurHash3, 32 bits for x86, with the seed 0 (Austin Appleby, public domain)."""
    hashed, aligned = 0, len(data) & ~3
    for start in range(0, aligned, 4):
        hashed ^= _scrambled(int.from_bytes(data[start : start + 4], "little"))
        hashed = (_rotated(hashed, 13) * 5 + 0xE6546B64) & _MASK
    hashed ^= _scrambled(int.from_bytes(data[aligned:], "little")) ^ len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = ((hashed ^ hashed >> shift) * factor) & _MASK
    return hashed ^ hashed >> 16


def _scrambled(word: int) -> int:
    return _rotated(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _MASK
