"""The one rule for "is it better?": against SciPy, numerical integration, and simulated versions that are equal."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from onebert_store.comparison import (
    Outcomes,
    answer_from,
    compare,
    e_value,
    p_value,
    rights,
    running_verdict,
    verdict,
)

LEVEL, SERIES, PAIRS = 0.05, 10_000, 1_000


@cache
def least_wins():
    """[pairs + 1]: of so many pairs, the fewest wins that promote; one more than there are pairs if none do."""
    pairs, wins = np.ogrid[: PAIRS + 1, : PAIRS + 1]
    promoted = np.where(wins <= pairs, e_value(wins, np.maximum(pairs - wins, 0)), 0) >= 1 / LEVEL
    return np.where(promoted.any(axis=1), promoted.argmax(axis=1), PAIRS + 1)


def promoted_after(rate, seed):
    """The number of pairs [series] after which each series is promoted first; infinite if it never is."""
    won = np.random.default_rng(seed).random((SERIES, PAIRS)) < rate
    reached = np.cumsum(won, axis=1) >= least_wins()[1:]
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (0, 1), (7, 3), (3, 7), (60, 40), (0, 30)])
def test_an_e_value_is_a_mean_likelihood_ratio(wins, losses):
    def ratio(p):
        return 2 ** (wins + losses) * p**wins * (1 - p) ** losses * 2 * stats.beta.pdf(p, 5, 5)

    assert e_value(wins, losses) == pytest.approx(integrate.quad(ratio, 0.5, 1)[0], rel=1e-9)


@pytest.mark.parametrize("rate", [0.5, 0.45])
def test_at_most_five_percent_of_nulls_are_promoted(rate):
    promoted = np.isfinite(promoted_after(rate, seed=34)).mean()
    # Ville's bound is 0.05, for series without an end; three standard errors of 10,000 draws are 0.0065.
    assert 0 < promoted <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / SERIES)
    if rate == 0.5:
        # The bound is used: a test that hardly ever promotes would pass, too.
        assert promoted >= 0.025


def test_evidence_against_is_the_mirror_of_evidence_for():
    assert running_verdict(Outcomes(wins=60, losses=20)) == "better"
    assert running_verdict(Outcomes(wins=20, losses=60)) == "worse"
    assert running_verdict(Outcomes(wins=40, losses=40)) == running_verdict(Outcomes(both=9)) == "unproven"
    # Of two candidates each is judged at half of the level.
    close = Outcomes(wins=16, losses=3)
    assert (running_verdict(close), running_verdict(close, LEVEL / 2)) == ("better", "unproven")


def test_extreme_counts_stay_finite_numbers():
    for wins, losses in ((10**6, 0), (0, 10**6), (10**6, 10**6)):
        assert np.isfinite(e_value(wins, losses))
    assert running_verdict(Outcomes(wins=10**6), 1e-4) == "better"
    assert running_verdict(Outcomes(losses=10**6), 1e-4) == "worse"


COUNTS = st.integers(0, 60)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_a_p_value_is_that_of_a_fair_coin(both, wins, losses, neither):
    outcomes = Outcomes(both, wins, losses, neither)
    pairs = wins + losses
    expected = stats.binomtest(wins, pairs, 0.5).pvalue if pairs else 1.0
    assert p_value(outcomes) == pytest.approx(expected, rel=1e-9)
    proven = "better" if wins > losses else "worse"
    assert verdict(outcomes) == (proven if expected <= LEVEL else "unproven")


ANSWERS = st.one_of(
    st.tuples(*[st.none() | st.sampled_from("abc")] * 3),
    st.tuples(*[st.lists(st.sampled_from("abc"), unique=True)] * 3),
    st.tuples(*[st.lists(st.tuples(st.integers(0, 3), st.integers(4, 6), st.sampled_from("ab")), unique=True)] * 3),
)


@given(st.lists(ANSWERS, max_size=30))
def test_outcomes_are_counted_as_by_hand(rows):
    def alike(right, answer):
        return right is not None and set(right) == set(answer if answer is not None else "?")

    rows = [row for row in rows if row[0] is not None]
    pairs = [(alike(right, answer), alike(right, other)) for right, answer, other in rows]
    expected = Outcomes(*(pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))))
    assert compare(tuple(map(answer_from, row)) for row in rows) == expected


def test_the_nearer_number_is_right():
    assert rights(1.0, 1.2, 0.7) == (True, False)
    assert rights(1.0, 0.5, 1.5) == (True, True)


def test_an_abstention_is_not_right():
    assert rights("a", None, "a") == (False, True)
