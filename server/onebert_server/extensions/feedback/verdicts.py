"""Verdicts over feedback: has a candidate proven better or worse beside the version with the largest share?"""

import asyncio
from concurrent.futures import Executor

from onebert_server.contract.tasks import VerdictFacts
from onebert_server.threads import run_in
from onebert_store.comparison import LEVEL, Outcomes, e_value, running_verdict
from onebert_store.registry.target import Target
from onebert_store.samples.store import SampleStore

_WORDS = {"better": "promote", "worse": "roll_back", "unproven": "not_yet"}


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
    wins, losses = outcomes.wins, outcomes.losses
    better, worse = float(e_value(wins, losses)), float(e_value(losses, wins))
    words = _WORDS[running_verdict(outcomes, level)]
    return VerdictFacts(version, wins, losses, outcomes.alike, better, worse, words)
