"""The keys that a process accepts and their principals; a change in the registry replaces the whole table."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from onebert_server.access.principal import Principal, root


class Holder(NamedTuple):
    """The principal of a key, and the key's expiry in seconds since 1970; None means never."""

    principal: Principal
    expires: float | None = None


class KeyRing:
    """Looks keys up by their SHA-256; the keys of the environment may do everything.

    Args:
        environment: SHA-256 of each key of the environment -> its name.
        closed: whether there is another way to log in, so that a server without keys is not open.

    Attributes:
        is_open: whether no key was ever made, so that everybody who reaches the server may do everything.
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
        """Replaces the keys of the registry; the keys of the environment stay.

        Once `is_open` is false it stays false: the holder of a revoked key must not get in without one.
        """
        self._holders = {**registered, **self._environment}
        self.registered = registered
        self.is_open = self.is_open and is_open
        for listener in self._listeners:
            listener()

    def tell(self, listener: Callable[[], None]) -> None:
        """Registers a function that runs after each replacement, on the thread that replaces."""
        self._listeners.append(listener)

    def find(self, digest: bytes) -> Principal | None:
        """Returns the principal of the key with this SHA-256; None if the key is unknown or expired.

        It is one lookup in a dict that is only ever replaced as a whole. Nobody can choose the bytes of a hash, so the
        time of a lookup reveals nothing about any key.
        """
        holder = self._holders.get(digest)
        if holder is None or (holder.expires is not None and holder.expires <= self._clock()):
            return None
        return holder.principal
