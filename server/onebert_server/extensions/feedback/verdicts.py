"""Verdicts over feedback: has a candidate proven better or worse beside the version with the largest share?"""

import asyncio
from concurrent.futures import Executor
from functools import lru_cache

from onebert_server.contract.tasks import VerdictFacts
from onebert_server.threads import run_in
from onebert_store.comparison import LEVEL, Outcomes, e_value, running_verdict
from onebert_store.registry.target import Target
from onebert_store.samples.store import SampleStore

# Tasks whose verdicts are kept in memory.
_TASKS = 1000
_WORDS = {"better": "promote", "worse": "roll_back", "unproven": "not_yet"}


class Verdicts:
    """Judges candidates by the feedback in the store, whenever somebody asks; nothing is computed as feedback comes.

    Use `of` from one event loop, `judged` from any thread; `registrars` are the threads for the store.
    """

    def __init__(self, store: SampleStore, registrars: Executor) -> None:
        self._store = store
        self._registrars = registrars
        self._counting = asyncio.Lock()
        # The status of all tasks is read every few seconds, feedback may be a million rows.
        self._judged = lru_cache(_TASKS)(lambda task, target, _: judge(store, task, target))

    async def of(self, task: str, target: Target) -> list[VerdictFacts]:
        """Judges every candidate of a target; one task at a time, as it reads much."""
        async with self._counting:
            return await run_in(self._registrars, self.judged, task, target)

    def judged(self, task: str, target: Target) -> list[VerdictFacts]:
        """Judges every candidate of a target; feedback is counted again only if there is more or less of it."""
        return self._judged(task, target, self._store.outcomes_mark(task))


def judge(store: SampleStore, task: str, target: Target) -> list[VerdictFacts]:
    """Judges every candidate of a target, each at its share of the level."""
    level = LEVEL / max(1, len(target.candidates))
    counts = store.outcomes(task, target.version, target.candidates)
    return [_facts(version, outcomes, level) for version, outcomes in counts.items()]


def _facts(version: int, outcomes: Outcomes, level: float) -> VerdictFacts:
    wins, losses = outcomes.wins, outcomes.losses
    better, worse = float(e_value(wins, losses)), float(e_value(losses, wins))
    words = _WORDS[running_verdict(outcomes, level)]
    return VerdictFacts(version, wins, losses, outcomes.alike, better, worse, words)
