"""Verdicts over feedback: is a candidate proven better or worse, by a test that may be looked at after every answer?"""

import asyncio
from concurrent.futures import Executor
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onebert_server.contract.tasks import VerdictFacts
from onebert_server.threads import run_in
from onebert_store.registry.target import Target
from onebert_store.samples.records import Outcomes
from onebert_store.samples.store import SampleStore

Array = NDArray[np.float64]
Verdict = Literal["promote", "roll_back", "not_yet"]

# The level of verdicts.
LEVEL = 0.05
# The mixing distribution is Beta(5, 5), the part above one half. If a version wins 60 % of the pairs, it is proven at
# level 0.05 after 142 pairs in the median; with 1 in place of 5 after 163, with 20 after 153 (decision 71).
_A = 5.0
# Larger evidence is no other verdict, and JSON has no infinity.
_MAX_LOG = np.log(1e300)


def e_value(wins: ArrayLike, losses: ArrayLike) -> Array:
    """The evidence [...] that a version is right more often than another where exactly one of the two is right.

    Against the null that it wins at most half of these pairs, a win rate p has the likelihood ratio
    p^wins (1 - p)^losses 2^(wins + losses), a nonnegative supermartingale that starts at 1. So has its mean over p
    from Beta(a, a), the part above one half (a mixture as in Robbins 1970). By Ville's inequality (1939) a null ever
    reaches 1/level with at most the probability `level`, however often it is looked at (Ramdas, Grünwald, Vovk and
    Shafer 2023, section 2). With the order exchanged it is the evidence that the version is worse.
    """
    from scipy.special import betainc, betaln  # noqa: PLC0415 - slow to import

    b, c = np.asarray(wins, np.float64), np.asarray(losses, np.float64)
    with np.errstate(divide="ignore"):
        # I_1/2(a + c, a + b), the mass of Beta(a + b, a + c) above one half, may be zero: no evidence at all.
        above = np.log(betainc(_A + c, _A + b, 0.5))
    log_evidence = (1 + b + c) * np.log(2) + betaln(_A + b, _A + c) - betaln(_A, _A) + above
    return np.asarray(np.exp(np.minimum(log_evidence, _MAX_LOG)))


def verdict_of(wins: int, losses: int, level: float) -> Verdict:
    """The verdict about a candidate that won and lost so many pairs; each of the two errors is at most `level`."""
    if e_value(wins, losses) >= 1 / level:
        return "promote"
    return "roll_back" if e_value(losses, wins) >= 1 / level else "not_yet"


class Verdicts:
    """Judges candidates by the feedback in the store, whenever somebody asks; nothing is computed as feedback comes.

    Use it from one event loop; `registrars` are the threads for the store.
    """

    def __init__(self, store: SampleStore, registrars: Executor) -> None:
        self._store = store
        self._registrars = registrars
        self._counting = asyncio.Lock()

    async def of(self, task: str, target: Target) -> list[VerdictFacts]:
        """Judges every candidate of a target, each at its share of the level; one task at a time, as it reads much."""
        level = LEVEL / max(1, len(target.candidates))
        async with self._counting:
            counts = await run_in(self._registrars, self._store.outcomes, task, target.version, target.candidates)
        return [_facts(version, outcomes, level) for version, outcomes in counts.items()]


def _facts(version: int, outcomes: Outcomes, level: float) -> VerdictFacts:
    wins, losses, alike = outcomes.wins, outcomes.losses, outcomes.both + outcomes.neither
    better, worse = float(e_value(wins, losses)), float(e_value(losses, wins))
    return VerdictFacts(version, wins, losses, alike, better, worse, verdict_of(wins, losses, level))
