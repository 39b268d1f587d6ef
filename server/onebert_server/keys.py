"""The keys that a process takes now, and whose each is; replaced as a whole where the registry's keys have changed."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from onebert_server.principal import Principal, root


class Holder(NamedTuple):
    """Whose a key is, and until when, in seconds since 1970; None is for ever."""

    principal: Principal
    expires: float | None = None


class KeyRing:
    """Looks keys up by their SHA-256; the keys of the environment are for everything.

    Args:
        environment: the SHA-256 of each key of the environment.
        clock: seconds since 1970.

    Attributes:
        is_open: whether there is no key at all, so that whoever reaches the server may do everything.
    """

    def __init__(self, environment: Iterable[bytes], clock: Callable[[], float] = time.time) -> None:
        self._environment = {digest: Holder(root(f"key:{digest.hex()[:16]}")) for digest in environment}
        self._holders = self._environment
        self._clock = clock
        self.is_open = not self._holders

    def replace(self, holders: Mapping[bytes, Holder]) -> None:
        """Takes these keys from now on, beside those of the environment, and none of those given before."""
        self._holders = {**holders, **self._environment}
        # Never open again: whoever held a key that was taken away must not get in without one.
        self.is_open = self.is_open and not holders

    def find(self, digest: bytes) -> Principal | None:
        """Whose key has this SHA-256; None where it is nobody's, or no longer.

        It is one look-up, in a table that is never changed but only exchanged. Nobody can choose the bytes of a hash,
        so the time that a look-up takes says nothing about any key.
        """
        holder = self._holders.get(digest)
        if holder is None or (holder.expires is not None and holder.expires <= self._clock()):
            return None
        return holder.principal
