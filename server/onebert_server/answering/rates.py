"""Requests and tokens a second of principals that have a quota of them: buckets that fill with time, in memory."""

import time
from collections.abc import Callable, Sequence

from onebert_server.access.principal import Principal
from onebert_server.engine.request import Item
from onebert_store.errors import OverQuota

# Seconds of its rate that a principal which was quiet may spend at once.
BURST_SECONDS = 1.0
# So many principals are counted before those are dropped who owe nothing: an OIDC issuer may have any number of users.
MANY = 4096
_ROUNDING = 1e-6


class _Bucket:
    """What may still be spent; below 0 it is owed."""

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
    """Counts what principals spend; to be used from one thread. Whoever has no such quota costs two comparisons.

    Each replica counts for itself: nothing is asked of another process before a request may go on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By principal's name and quotas.
        self._buckets: dict[tuple[str, float | None, float | None], tuple[_Bucket | None, _Bucket | None]] = {}
        self._many = MANY

    def check(self, principal: Principal) -> None:
        """Refuses a principal that has spent what it may.

        A request of any size is let in as long as something is left, and what it takes beyond that is owed: a quota is
        kept over time, and no request is too large for it.

        Raises:
            OverQuota: with the seconds until something is left.
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
                # Until more than nothing is left, also by a clock that does not add up to the last digit.
                wait = int(-bucket.level / bucket.rate + _ROUNDING) + 1
                raise OverQuota(f"this caller may have {bucket.rate:g} {what} a second, and has had more", wait)

    def count(self, principal: Principal, items: Sequence[Item], requests: int = 1) -> None:
        """Counts a request that was let in, or none, and the tokens of the sequences that are computed for it."""
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
        """Forgets who has spent nothing that time has not given back: a new bucket would be the same."""
        self._buckets = {
            key: pair
            for key, pair in self._buckets.items()
            if not all(bucket is None or bucket.is_full(now) for bucket in pair)
        }
        # Looked at again when there are twice as many, so that this costs each new principal no more than two look-ups.
        self._many = max(MANY, 2 * len(self._buckets))
