"""The highest rate of an open loop that a server answers in time, found by halving."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onebert_bench.load import Reply
from onebert_bench.numbers import percentile

HALVINGS = 5


@dataclass(frozen=True)
class Attempt:
    """One open loop at one rate.

    Attributes:
        rate: requests per second.
        replies: all of them.
        cpu_seconds: processor time that the server took meanwhile.
    """

    rate: float
    replies: Sequence[Reply]
    cpu_seconds: float

    @property
    def failed(self) -> int:
        """The number of requests that were not answered with status 200."""
        return sum(reply.status != 200 for reply in self.replies)

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of the latencies."""
        return percentile([reply.seconds for reply in self.replies], 0.99) * 1e3

    @property
    def cpu_us(self) -> float:
        """Processor microseconds for each request."""
        return self.cpu_seconds / len(self.replies) * 1e6

    def holds(self, most_ms: float) -> bool:
        """Whether every request was answered, 99 of 100 within so many milliseconds."""
        return not self.failed and self.p99_ms <= most_ms


def highest_rate(attempt: Callable[[float], Attempt], peak: float, most_ms: float) -> Attempt:
    """The attempt with the highest rate that holds, to within a 32nd of the peak; without one the lowest that failed.

    A rate fails if it fails twice, since a machine may pause for a moment.

    Args:
        attempt: runs an open loop at a rate.
        peak: a rate that the server cannot exceed.
        most_ms: the bound of the 99th percentile.
    """
    held: list[Attempt] = []
    failed: list[Attempt] = []
    above = peak
    for _ in range(HALVINGS):
        rate = ((held[-1].rate if held else 0.0) + above) / 2
        attempted = attempt(rate)
        if not attempted.holds(most_ms):
            attempted = attempt(rate)
        if attempted.holds(most_ms):
            held.append(attempted)
        else:
            failed.append(attempted)
            above = rate
    return (held or failed)[-1]
