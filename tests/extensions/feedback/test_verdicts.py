"""Verdicts by e-values: against numerical integration, and 10,000 simulated series looked at after each pair."""

from functools import cache

import numpy as np
import pytest
from scipy import integrate, stats

from onebert_server.extensions.feedback.verdicts import e_value, verdict_of

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
def test_an_e_value_is_the_mean_likelihood_ratio_over_win_rates_above_one_half(wins, losses):
    def ratio(p):
        return 2 ** (wins + losses) * p**wins * (1 - p) ** losses * 2 * stats.beta.pdf(p, 5, 5)

    assert e_value(wins, losses) == pytest.approx(integrate.quad(ratio, 0.5, 1)[0], rel=1e-9)


@pytest.mark.promise("verdict-level")
@pytest.mark.parametrize("rate", [0.5, 0.45])
def test_of_ten_thousand_nulls_looked_at_after_every_pair_at_most_five_percent_are_promoted(rate):
    promoted = np.isfinite(promoted_after(rate, seed=34)).mean()
    # Ville's bound is 0.05, for series without an end; three standard errors of 10,000 draws are 0.0065.
    assert 0 < promoted <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / SERIES)
    if rate == 0.5:
        # The bound is used: a test that hardly ever promotes would pass, too.
        assert promoted >= 0.025


def test_evidence_against_is_the_mirror_of_evidence_for():
    assert verdict_of(60, 20, LEVEL) == "promote"
    assert verdict_of(20, 60, LEVEL) == "roll_back"
    assert verdict_of(40, 40, LEVEL) == verdict_of(0, 0, LEVEL) == "not_yet"
    # Of two candidates each is judged at half of the level.
    assert (verdict_of(16, 3, LEVEL), verdict_of(16, 3, LEVEL / 2)) == ("promote", "not_yet")


def test_extreme_counts_stay_finite_numbers():
    for wins, losses in ((10**6, 0), (0, 10**6), (10**6, 10**6)):
        assert np.isfinite(e_value(wins, losses))
    assert verdict_of(10**6, 0, 1e-4) == "promote"
    assert verdict_of(0, 10**6, 1e-4) == "roll_back"
