"""Quotas on requests and tokens per second: buckets in memory, one set per replica, that fill with time."""

import time
from collections.abc import Callable, Sequence

from onebert_server.access.principal import Principal
from onebert_server.engine.request import Item
from onebert_store.errors import OverQuota

# Seconds of its rate that an idle principal may spend at once.
BURST_SECONDS = 1.0
# Above this many principals, full buckets are dropped: an OIDC issuer may have any number of users.
MANY = 4096
_ROUNDING = 1e-6


class _Bucket:
    """A token bucket; a level below 0 is a debt."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.level = self.full = max(rate * BURST_SECONDS, 1.0)
        self.at = now

    def fill(self, now: float) -> None:
        self.level = min(self.full, self.level + (now - self.at) * self.rate)
        self.at = now

    def is_full(self, now: float) -> bool:
        self.fill(now)
        return self.level == self.full


class Rates:
    """Counts the spending of principals; use it from one thread. A principal without a quota costs two comparisons."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By the principal's name and quotas.
        self._buckets: dict[tuple[str, float | None, float | None], tuple[_Bucket | None, _Bucket | None]] = {}
        self._many = MANY

    def check(self, principal: Principal) -> None:
        """Raises OverQuota, with the seconds until something is left, if a principal has spent its quota.

        A request of any size is admitted while something is left, and the excess becomes a debt.
        """
        quotas = principal.quotas
        if not quotas.of_rates:
            return
        now = self._clock()
        for bucket, what in zip(self._of(principal, now), ("requests", "tokens"), strict=True):
            if bucket is None:
                continue
            bucket.fill(now)
            if bucket.level <= 0:
                # Wait until the level is above 0, with a margin for rounding errors of the clock.
                wait = int(-bucket.level / bucket.rate + _ROUNDING) + 1
                raise OverQuota(f"this caller may have {bucket.rate:g} {what} a second, and has had more", wait)

    def count(self, principal: Principal, items: Sequence[Item], requests: int = 1) -> None:
        quotas = principal.quotas
        if not quotas.of_rates:
            return
        tokens = sum(len(item.tokens) for item in items)
        for bucket, spent in zip(self._of(principal, self._clock()), (requests, tokens), strict=True):
            if bucket is not None:
                bucket.level -= spent

    def _of(self, principal: Principal, now: float) -> tuple[_Bucket | None, _Bucket | None]:
        quotas = principal.quotas
        key = principal.name, quotas.requests, quotas.tokens
        if key not in self._buckets:
            if len(self._buckets) >= self._many:
                self._drop_full(now)
            rates = quotas.requests, quotas.tokens
            requests, tokens = (None if rate is None else _Bucket(rate, now) for rate in rates)
            self._buckets[key] = requests, tokens
        return self._buckets[key]

    def _drop_full(self, now: float) -> None:
        self._buckets = {
            key: pair
            for key, pair in self._buckets.items()
            if not all(bucket is None or bucket.is_full(now) for bucket in pair)
        }
        # The next sweep comes at twice this number, so a sweep costs each new principal at most two lookups.
        self._many = max(MANY, 2 * len(self._buckets))
