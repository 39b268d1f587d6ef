"""The search of the highest rate in time, beside servers whose limit is known."""

import pytest

from onebert_bench.load import Reply
from onebert_bench.sustained import HALVINGS, Attempt, highest_rate


class Queue:
    """A server that answers `limit` requests a second, each in 2 ms; of more, all wait for what came before."""

    def __init__(self, limit: float, hiccups: int = 0, status: int = 200) -> None:
        self.limit, self.hiccups, self.status, self.rates = limit, hiccups, status, list[float]()

    def attempt(self, rate: float) -> Attempt:
        self.rates.append(rate)
        pause, self.hiccups = (0.5 if self.hiccups else 0.0), max(0, self.hiccups - 1)
        slower = max(0.0, 1 / self.limit - 1 / rate)
        count = int(2 * rate)
        replies = [Reply(turn / rate, 0.002 + pause + turn * slower, self.status) for turn in range(count)]
        return Attempt(rate, replies, count * 0.001)


@pytest.mark.parametrize("limit", [33.0, 70.0, 99.0])
def test_the_rate_is_found_to_within_a_32nd_of_the_peak(limit):
    best = highest_rate(Queue(limit).attempt, 100.0, 20.0)
    assert best.holds(20.0)
    # Somewhat more than the limit still holds for two seconds: the last of them wait less than 20 ms.
    assert limit - 100 / 2**HALVINGS <= best.rate <= 1.02 * limit
    assert best.cpu_us == pytest.approx(1000)


def test_a_pause_of_the_machine_is_forgiven_once():
    paused = Queue(70.0, hiccups=1)
    assert highest_rate(paused.attempt, 100.0, 20.0).rate == highest_rate(Queue(70.0).attempt, 100.0, 20.0).rate
    assert paused.rates[:2] == [50.0, 50.0]


def test_without_a_rate_that_holds_it_is_the_lowest_that_was_tried():
    best = highest_rate(Queue(1e9, hiccups=1000).attempt, 64.0, 20.0)
    assert not best.holds(20.0)
    assert best.rate == 64.0 / 2**HALVINGS
    assert best.p99_ms == pytest.approx(502)


def test_a_request_that_is_refused_fails_the_rate():
    refused = Queue(70.0, status=503).attempt(10.0)
    assert refused.failed == 20
    assert not refused.holds(20.0)
