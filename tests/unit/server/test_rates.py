"""Rates of principals, against the sum that a principal may have had by then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_server.access.principal import Principal
from onebert_server.fairness.rates import MANY, Rates
from onebert_store.errors import OverQuota
from onebert_store.registry.grants import Quotas


def limited(name="key:slow", **quotas):
    return Principal(name, frozenset(), (), quotas=Quotas(**quotas))


@given(
    rate=st.sampled_from([0.25, 1.0, 7.0]),
    asked=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 40)), max_size=60),
    what=st.sampled_from(["requests", "tokens"]),
)
def test_a_rate_is_kept_over_time_and_waits_are_true(rate, asked, what):
    now = [0.0]
    rates, who = Rates(lambda: now[0]), limited(**{what: rate})
    spent, largest = 0, 0
    for gap, length in asked:
        now[0] += gap
        try:
            rates.require_quota(who)
        except OverQuota as refused:
            now[0] += refused.retry_after
            rates.require_quota(who)  # it is let in when it was told to come again
        rates.count(who, 1, length)
        cost = length if what == "tokens" else 1
        spent, largest = spent + cost, max(largest, cost)
        # What came in at once, what came with time, and the one request that may go over.
        assert spent <= max(rate, 1.0) + rate * now[0] + largest + 1e-6


def test_any_number_of_principals_come_and_nobody_is_forgiven():
    """As of an issuer with many users: who has nothing to pay back is forgotten, who owes is not."""
    now = [0.0]
    rates, owing = Rates(lambda: now[0]), limited("oidc:owing", tokens=0.001)
    rates.count(owing, 1, 100)
    for number in range(3 * MANY):
        now[0] += 0.01
        rates.count(limited(f"oidc:{number}", tokens=100.0, requests=5.0), 1, 9)
    assert len(rates._buckets) <= MANY
    with pytest.raises(OverQuota):
        rates.require_quota(owing)
    now[0] = 110_000
    rates.require_quota(owing)
