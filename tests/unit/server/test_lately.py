"""Traffic of the last minutes against sums over all requests by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_server.observed import Seen
from onebert_server.telemetry.lately import BOUNDS, FADES, LEAST_SECONDS, MAX_TASKS, Lately

requests = st.lists(st.tuples(st.floats(0, 400), st.floats(1e-4, 12), st.sampled_from("ab")), min_size=1, max_size=60)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@given(requests)
def test_the_pace_is_of_all_requests_with_their_weights(told):
    clock = Clock()
    lately, times = Lately(clock), []
    for gap, seconds, task in told:
        clock.now += gap
        # Two answers of one request are one request.
        lately.count([Seen(task), Seen(task)], seconds)
        times.append((clock.now, seconds, task))
    for task in "ab":
        own = [(math.exp((at - clock.now) / FADES), seconds) for at, seconds, name in times if name == task]
        if not own:
            assert lately.of(task) is None
            continue
        whole = sum(weight for weight, _ in own)
        span = FADES * (1 - math.exp(-max(clock.now, LEAST_SECONDS) / FADES))
        pace = lately.of(task)
        # A request counts as if it came up to a second earlier or later.
        assert pace.a_minute == pytest.approx(60 * whole / span, rel=1.01 / FADES)
        # The bounds around the smallest time that 95 % of the weight does not exceed, up to the same error.
        ranked = sorted((seconds, weight) for weight, seconds in own)
        near = [
            next(
                (s for at, (s, _) in enumerate(ranked) if sum(w for _, w in ranked[: at + 1]) >= q * whole), BOUNDS[-1]
            )
            for q in (0.95 - 1 / FADES, 0.95 + 1 / FADES)
        ]
        low = max((bound for bound in BOUNDS if bound < near[0]), default=0.0)
        high = min((bound for bound in BOUNDS if bound >= near[1]), default=BOUNDS[-1])
        assert low <= pace.p95 <= high


def test_a_steady_rate_is_right_from_its_first_minute_and_fades_when_it_ends():
    clock = Clock()
    lately = Lately(clock)
    for second in range(3600):
        clock.now = float(second)
        lately.count([Seen("tone")], 0.02)
        if second in (120, 600, 3599):
            assert lately.of("tone").a_minute == pytest.approx(60, rel=0.02)
    clock.now += 10 * FADES
    assert lately.of("tone").a_minute < 0.01


def test_a_renamed_task_goes_on_and_the_most_recent_tasks_are_kept():
    lately = Lately(Clock())
    for number in range(MAX_TASKS + 5):
        lately.count([Seen(f"task{number}")], 0.1)
        lately.count([Seen("busy")], 0.1)
    assert lately.of("task3") is None
    assert lately.of(f"task{MAX_TASKS}") is not None
    lately.count([Seen(f"more{number}") for number in range(5)], 0.1)
    assert (lately.of("task10"), lately.of("task11") is None) == (None, False), "one request may ask several new tasks"
    rate = lately.of("busy")
    lately.rename("busy", "task99")
    assert (lately.of("busy"), lately.of("task99")) == (None, rate)
