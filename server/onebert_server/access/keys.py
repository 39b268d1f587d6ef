"""The keys that a process takes now, and whose each is; replaced as a whole where the registry's keys have changed."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from onebert_server.access.principal import Principal, root


class Holder(NamedTuple):
    """Whose a key is, and until when, in seconds since 1970; None is for ever."""

    principal: Principal
    expires: float | None = None


class KeyRing:
    """Looks keys up by their SHA-256; the keys of the environment are for everything.

    Args:
        environment: the SHA-256 of each key of the environment, and whose it is.
        closed: whether callers prove themselves otherwise, too, so that nobody gets in without anything.
        clock: seconds since 1970.

    Attributes:
        registered: the keys of the registry, by their SHA-256.
        is_open: whether there never was a key, so that whoever reaches the server may do everything.
    """

    def __init__(
        self, environment: Mapping[bytes, str], closed: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self._environment = {digest: Holder(root(f"key:{name}")) for digest, name in environment.items()}
        self._holders = self._environment
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self.registered: Mapping[bytes, Holder] = {}
        self.is_open = not (self._holders or closed)

    def replace(self, registered: Mapping[bytes, Holder], is_open: bool = False) -> None:
        """Takes these keys from now on, beside those of the environment, and none of those given before.

        Args:
            registered: all that are valid, by their SHA-256.
            is_open: whether none was ever made: whoever held one that was revoked must not get in without one.
        """
        self._holders = {**registered, **self._environment}
        self.registered = registered
        self.is_open = self.is_open and is_open
        for listener in self._listeners:
            listener()

    def tell(self, listener: Callable[[], None]) -> None:
        """Has a function called after each exchange, on whatever thread it happens."""
        self._listeners.append(listener)

    def find(self, digest: bytes) -> Principal | None:
        """Whose key has this SHA-256; None where it is nobody's, or no longer.

        It is one look-up, in a table that is never changed but only exchanged. Nobody can choose the bytes of a hash,
        so the time that a look-up takes says nothing about any key.
        """
        holder = self._holders.get(digest)
        if holder is None or (holder.expires is not None and holder.expires <= self._clock()):
            return None
        return holder.principal
