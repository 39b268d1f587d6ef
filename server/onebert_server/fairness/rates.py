"""Rates: quotas of principals, and attempts of addresses without a key, by buckets in memory that fill with time.

Shares bound what is held at one moment and come back when it ends; a rate bounds what is begun over time.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from onebert_store.errors import OverQuota, TooManyAttempts
from onebert_store.registry.grants import Quotas

# Seconds of its rate that an idle principal may spend at once.
BURST_SECONDS = 1.0
# Above this many principals, full buckets are dropped: an OIDC issuer may have any number of users.
MANY = 4096
_ROUNDING = 1e-6


class HasQuotas(Protocol):
    """A principal with quotas."""

    @property
    def name(self) -> str: ...

    @property
    def quotas(self) -> Quotas: ...


class Bucket:
    """Fills with `rate` per second up to `full`, where it begins; a level below 0 is a debt."""

    def __init__(self, rate: float, full: float, now: float) -> None:
        self.rate = rate
        self.level = self._full = full
        self._at = now

    def fill(self, now: float) -> float:
        """Fills the bucket up to this moment and returns its level."""
        self.level = min(self._full, self.level + (now - self._at) * self.rate)
        self._at = now
        return self.level

    def is_full(self, now: float) -> bool:
        return self.fill(now) == self._full


class Rates:
    """Counts the spending of principals; use it from one thread. A principal without a quota costs two comparisons."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By the principal's name and quotas.
        self._buckets: dict[tuple[str, float | None, float | None], list[Bucket | None]] = {}
        self._many = MANY

    def require_quota(self, principal: HasQuotas | None) -> None:
        """Raises OverQuota, with the seconds until something is left, if a principal has spent its quota.

        A request of any size is admitted while something is left, and the excess becomes a debt.
        """
        if principal is None or not principal.quotas.of_rates:
            return
        now = self._clock()
        for bucket, what in zip(self._of(principal, now), ("requests", "tokens"), strict=True):
            if bucket is not None and bucket.fill(now) <= 0:
                # Wait until the level is above 0, with a margin for rounding errors of the clock.
                wait = int(-bucket.level / bucket.rate + _ROUNDING) + 1
                raise OverQuota(f"this caller may have {bucket.rate:g} {what} a second, and has had more", wait)

    def count(self, principal: HasQuotas | None, requests: int, tokens: int) -> None:
        """Counts what is computed for a principal, into debt if it is more than is left; None owes nothing."""
        if principal is None or not principal.quotas.of_rates:
            return
        for bucket, spent in zip(self._of(principal, self._clock()), (requests, tokens), strict=True):
            if bucket is not None:
                bucket.level -= spent

    def _of(self, principal: HasQuotas, now: float) -> list[Bucket | None]:
        rates = principal.quotas.requests, principal.quotas.tokens
        key = principal.name, *rates
        if key not in self._buckets:
            if len(self._buckets) >= self._many:
                self._drop_full(now)
            self._buckets[key] = [
                None if rate is None else Bucket(rate, max(rate * BURST_SECONDS, 1.0), now) for rate in rates
            ]
        return self._buckets[key]

    def _drop_full(self, now: float) -> None:
        self._buckets = {
            key: pair
            for key, pair in self._buckets.items()
            if not all(bucket is None or bucket.is_full(now) for bucket in pair)
        }
        # The next sweep comes at twice this number, so a sweep costs each new principal at most two lookups.
        self._many = max(MANY, 2 * len(self._buckets))


class Attempts:
    """Limits requests without a valid key per address: a burst of `AT_ONCE`, then `A_SECOND` per second.

    Whoever has a valid key passes: he may share an address, as behind a proxy, and nobody can guess a 128-bit key.
    """

    AT_ONCE, A_SECOND = 100, 10
    ADDRESSES = 4096

    def __init__(self) -> None:
        # By address, least recently used first.
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def count(self, address: str, now: float) -> None:
        """Counts one attempt; raises TooManyAttempts if the address is over the limit."""
        bucket = self._buckets.setdefault(address, Bucket(self.A_SECOND, self.AT_ONCE, now))
        self._buckets.move_to_end(address)
        if len(self._buckets) > self.ADDRESSES:
            self._buckets.popitem(last=False)
        if bucket.fill(now) < 1:
            raise TooManyAttempts("too many requests without a valid key came from this address", 1)
        bucket.level -= 1

    def give_back(self, address: str) -> None:
        """Takes one attempt back: its token was valid."""
        if bucket := self._buckets.get(address):
            bucket.level += 1
