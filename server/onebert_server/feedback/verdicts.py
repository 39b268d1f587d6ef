"""Verdicts over feedback: what the candidates of an alias have proven, and its move by the owner's rule."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from concurrent.futures import Executor

from onebert_server.access.context import own_work
from onebert_server.access.principal import RESERVED
from onebert_server.answering.gates import Gates
from onebert_server.contract.tasks import VerdictFacts
from onebert_server.gate.verdicts import decide, e_value
from onebert_server.logs import log_failure
from onebert_server.threads import run_in
from onebert_server.versions.catalog import Catalog
from onebert_store.errors import AliasConflict, GateFailed, OneBertError
from onebert_store.registry.feed import Feed
from onebert_store.registry.names import LIVE
from onebert_store.registry.target import Target, alone
from onebert_store.samples.records import Outcomes
from onebert_store.samples.store import SampleStore

logger = logging.getLogger("onebert.verdicts")

# The level of verdicts that people decide by.
LEVEL = 0.05
# The latest moves by verdicts of one task that are looked through.
_MOST_MOVES = 1000
# Starts the text of a move in the audit trail.
_MOVE = "verdict on version {}:"


class Verdicts:
    """Judges candidates by the feedback in the store; use it from one event loop, with which its work ends.

    `registrars` are the threads for the registry and the store.
    """

    def __init__(self, store: SampleStore, feed: Feed, catalog: Catalog, gates: Gates, registrars: Executor) -> None:
        self._store = store
        self._feed = feed
        self._catalog = catalog
        self._gates = gates
        self._registrars = registrars
        self._judging = asyncio.Lock()
        # Tasks with new feedback, and the worker that judges them one after the other.
        self._waiting: set[str] = set()
        self._worker: asyncio.Task[None] | None = None

    async def of(self, task: str, target: Target) -> list[VerdictFacts]:
        """Judges every candidate of a target, each at its share of the level; one task at a time, as it reads much."""
        level = (target.decide or LEVEL) / max(1, len(target.candidates))
        async with self._judging:
            found = await run_in(self._registrars, self._store.outcomes, task, target.version, target.candidates)
        return [_judged(number, one, level) for number, one in found.items()]

    def follow(self, tasks: Collection[str]) -> None:
        """Moves `live` of these tasks if its target decides and a verdict is complete; call it after new feedback.

        The work comes after the call. A move that is refused, by the gate or because somebody else moved the alias, is
        logged and moves nothing; one that the gate refused is not tried again, here or on another replica.
        """
        self._waiting |= {*tasks}
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._waiting:
            try:
                await self._follow(self._waiting.pop())
            except AliasConflict:
                logger.info("another move of an alias came before a verdict's")
            except OneBertError as error:
                logger.warning("a verdict moved no alias: %s", error.code)
            # Catch everything: the others that wait are judged, too.
            except Exception as error:
                log_failure(logger, "a verdict", error)

    async def _follow(self, task: str) -> None:
        at = self._catalog.directory.task(task, most=0).aliases.get(LIVE)
        if at is None or at.target.decide is None:
            return
        if at.target.tag == await run_in(self._registrars, self._store.refused, task):
            return
        judged = await self.of(task, at.target)
        to, by = decided(at.target, judged)
        if by is None or await run_in(self._registrars, self._moved_before, task, by.version, to):
            return
        evidence = f"e-value {max(by.better, by.worse):.4g}, {by.wins} wins, {by.losses} losses"
        # The audit trail has this in place of a request's id.
        context = own_work(f"{_MOVE.format(by.version)} {evidence}")
        async with self._catalog.in_memory(task, [number for number, _ in to.shares], context):
            try:
                await self._gates.require(task, LIVE, to, at.target.tag, context)
            except GateFailed:
                await run_in(self._registrars, self._store.refuse, task, at.target.tag)
                raise
            await run_in(self._registrars, self._catalog.move_alias, task, LIVE, to, at.target.tag, context)

    def _moved_before(self, task: str, version: int, to: Target) -> bool:
        """Whether a verdict on this version has moved `live` to this meaning: somebody has taken that back since."""
        own = self._feed.audit(0, _MOST_MOVES, task, principal=RESERVED, newest=True)
        moves = [one for one in own if one.alias == LIVE and one.request.startswith(_MOVE.format(version))]
        return any((one.target or alone(one.version or 0)) == to for one in moves)


def _judged(number: int, found: Outcomes, level: float) -> VerdictFacts:
    wins, losses = found.wins, found.losses
    evidence = float(e_value(wins, losses)), float(e_value(losses, wins))
    return VerdictFacts(number, wins, losses, found.both + found.neither, *evidence, decide(wins, losses, level))


def decided(target: Target, judged: Sequence[VerdictFacts]) -> tuple[Target, VerdictFacts | None]:
    """Returns the target by complete verdicts, and the verdict with the most evidence; None without any.

    A version that is proven better answers alone. Versions that are proven worse leave, and the largest share takes
    over theirs.
    """
    better = [one for one in judged if one.verdict == "promote"]
    if better:
        best = max(better, key=lambda one: one.better)
        return alone(best.version), best
    worse = [one for one in judged if one.verdict == "roll_back"]
    if not worse:
        return target, None
    return target.without({one.version for one in worse}), max(worse, key=lambda one: one.worse)
