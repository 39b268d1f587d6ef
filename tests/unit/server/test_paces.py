"""Traffic of the last minutes against sums over all requests by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observing import answered
from onebert_server.observed import Seen
from onebert_server.telemetry.counts import AnswerCounts
from onebert_server.telemetry.paces import BOUNDS, FADES, LEAST_SECONDS

versions = st.lists(st.sampled_from([("a", 1), ("a", 2), ("b", 1)]), min_size=1, max_size=4)
requests = st.lists(st.tuples(st.floats(0, 400), st.floats(1e-4, 12), versions), min_size=1, max_size=60)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@given(requests)
def test_the_pace_is_of_all_requests_with_their_weights(asked):
    clock, times = Clock(), []
    counts = AnswerCounts(clock=clock)
    for gap, seconds, versions in asked:
        clock.now += gap
        counts.count([answered([Seen(task, version=version) for task, version in versions], seconds)])
        # Several answers of one request are one request, whatever their versions.
        times.append((clock.now, seconds, {task for task, _ in versions}))
    for task in "ab":
        weights = [(math.exp((at - clock.now) / FADES), seconds) for at, seconds, tasks in times if task in tasks]
        if not weights:
            assert counts.paces({task}) == {}
            continue
        whole = sum(weight for weight, _ in weights)
        span = FADES * (1 - math.exp(-max(clock.now, LEAST_SECONDS) / FADES))
        pace = counts.paces({task})[task]
        # A request counts as if it came up to a second earlier or later.
        assert pace.a_minute == pytest.approx(60 * whole / span, rel=1.01 / FADES)
        # The bounds around the smallest time that 95 % of the weight does not exceed, up to the same error.
        ranked = sorted((seconds, weight) for weight, seconds in weights)
        near = [
            next(
                (s for at, (s, _) in enumerate(ranked) if sum(w for _, w in ranked[: at + 1]) >= q * whole), BOUNDS[-1]
            )
            for q in (0.95 - 1 / FADES, 0.95 + 1 / FADES)
        ]
        low = max((bound for bound in BOUNDS if bound < near[0]), default=0.0)
        high = min((bound for bound in BOUNDS if bound >= near[1]), default=BOUNDS[-1])
        assert low <= pace.p95 <= high
