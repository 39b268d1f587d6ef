"""Token buckets: what a principal or an address may have per second.

A rate is another thing than a share: shares bound what is held at one moment and come back when it ends; a rate bounds
what is begun over time, and only time fills a bucket again.
"""


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
