"""Makes versions of examples: the exact head at once, the default method in the background; decides about `live`."""

import asyncio
import base64
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

from onebert_server.access.context import Context
from onebert_server.access.keys import KeyRing
from onebert_server.answering.edge import Edge
from onebert_server.extensions.trainer.worker import Done, OnProgress, Worker
from onebert_server.fairness.places import Places
from onebert_server.fairness.receiving import Receiving
from onebert_server.fairness.shares import Permits
from onebert_server.logs import log_failure
from onebert_server.observed import Observed
from onebert_server.versions.catalog import Catalog, UploadResult
from onebert_server.versions.moves import Move, Moves
from onebert_store.errors import AliasConflict, Forbidden, ImprovementNotFound, Improving, OneBertError, ShuttingDown
from onebert_store.registry.names import LIVE
from onebert_store.registry.target import alone

logger = logging.getLogger("onebert.trainer")

# Requests with examples in memory, and improvements that the server remembers.
MAX_WAITING, MAX_IMPROVEMENTS = 64, 1000
UNDER_WAY = ("waiting", "training", "measuring")

Rows = Sequence[Mapping[str, str]]


class CreatedVersion(NamedTuple):
    """A version, the worker's facts about it, whether it is live, and its improvement if that was asked for."""

    taken: UploadResult
    facts: Done
    live: bool
    improvement: "Improvement | None"


@dataclass(eq=False)
class Improvement:
    """How far the training of a task's examples by the default method is.

    Attributes:
        head: the version of the exact head, which the result is compared with.
        reason: why the result is not live, or why there is none.
    """

    task: str
    head: int
    metric: str
    head_score: float
    state: str = "waiting"
    step: int = 0
    steps: int = 0
    began: float | None = None
    seconds: float = 0.0
    score: float | None = None
    version: int | None = None
    live: bool = False
    reason: str | None = None

    def update(self, progress: Mapping[str, Any]) -> None:
        self.began = self.began or time.monotonic()
        self.seconds = time.monotonic() - self.began
        self.state = "measuring" if progress["measuring"] else "training"
        self.step, self.steps = progress["step"], progress["steps"]


@dataclass
class Trainer:
    """Has the worker train, and uploads the results as a client would; use it from one event loop.

    One exact head and one improvement run at a time, each kind fair-queued by principal.
    """

    worker: Worker
    edge: Edge
    catalog: Catalog
    moves: Moves
    keys: KeyRing
    receiving: Receiving
    registrars: Executor
    uploader: Executor

    def __post_init__(self) -> None:
        self._heads, self._improving = Places(1), Places(1)
        full = "too many requests with examples are waiting; try again soon"
        self._permits = Permits(MAX_WAITING, full, "others wait with their examples; try again soon")
        self._improvements: dict[str, Improvement] = {}
        # Tasks whose improvement is asked for, and waits for the exact head.
        self._begun: set[str] = set()
        self._running: set[asyncio.Task[Any]] = set()

    async def create(self, task: str, rows: Rows, improve: bool, context: Context) -> CreatedVersion:
        """Makes the exact head of the rows the next version of a task, live if it is the first; improves it if asked.

        A caller that is cancelled gives up the answer; the version is made nevertheless.

        Raises:
            Forbidden, OverQuota, TooLarge: see `Catalog.upload_trained`; nothing is trained without room.
            Improving: an improvement of the task is under way.
            InvalidData: training refuses the rows.
            TrainerFailed: the training process ended.
            ShuttingDown: an improvement is asked for, and the server drains.
        """
        before = self._improvements.get(task)
        if improve and (task in self._begun or (before is not None and before.state in UNDER_WAY)):
            raise Improving(f"{task} is being improved; ask again when that has ended")
        if improve:
            self._require(context)
        self._permits.take(context.principal.name, 1)
        if improve:
            self._begun.add(task)
        return await asyncio.shield(self._spawn(self._create(task, rows, improve, context)))

    def improvement(self, task: str) -> Improvement:
        """Returns the last improvement of a task; raises ImprovementNotFound."""
        if task not in self._improvements:
            raise ImprovementNotFound(f"this server has improved nothing of {task} since it started")
        return self._improvements[task]

    async def _create(self, task: str, rows: Rows, improve: bool, context: Context) -> CreatedVersion:
        holder = context.principal.name
        try:
            await self._require_room(task, 0, context)
            request = {"task": task, "rows": rows, "improve": False}
            facts = await self._train(self._heads, context, request)
            taken = await self._store(task, facts, context)
            version, improvement = taken.entry.version, None
            if improve:
                improvement = Improvement(task, version, facts["metric"], facts["score"])
                self._remember(improvement)
                self._permits.add(holder, 1)
                self._spawn(self._improve(improvement, {**request, "improve": True}, context))
            return CreatedVersion(taken, facts, self._is_live(task, version), improvement)
        finally:
            self._permits.give_back(holder, 1)
            if improve:
                self._begun.discard(task)

    def _remember(self, improvement: Improvement) -> None:
        self._improvements.pop(improvement.task, None)
        self._improvements[improvement.task] = improvement
        if len(self._improvements) > MAX_IMPROVEMENTS:
            del self._improvements[next(iter(self._improvements))]

    async def _improve(self, improvement: Improvement, request: Mapping[str, Any], context: Context) -> None:
        context = replace(context, deadline=inf, observed=Observed())

        def on_progress(progress: Mapping[str, Any]) -> None:
            self._require(context)
            improvement.update(progress)

        try:
            # The head is a part of the result.
            head = self.catalog.directory.version(improvement.task, improvement.head)
            await self._require_room(improvement.task, head.entry.size, context)
            facts = await self._train(self._improving, context, request, on_progress)
            # A task that was deleted or renamed meanwhile must not come back by this upload.
            self.catalog.directory.version(improvement.task, improvement.head)
            self._require(context)
            taken = await self._store(improvement.task, facts, context)
            improvement.score, improvement.version = facts["score"], taken.entry.version
            improvement.reason = await self._settle(improvement, facts["ahead"], context)
            improvement.live = self._is_live(improvement.task, improvement.version)
            improvement.state = "done"
        except Exception as error:
            if not isinstance(error, OneBertError):
                log_failure(logger, "an improvement", error)
            improvement.reason = getattr(error, "detail", "the server failed; its log has more")
            improvement.state = "failed"
        finally:
            self._permits.give_back(context.principal.name, 1)

    async def _settle(self, improvement: Improvement, ahead: bool, context: Context) -> str | None:
        """Moves `live` to the improved version if the task's gate, or without one its lead over the head, allows it.

        Returns why it did not move.
        """
        at = self.catalog.directory.task(improvement.task, limit=0).aliases.get(LIVE)
        elsewhere = f"live does not mean version {improvement.head} alone, with which it is compared"

        def require_lead() -> None:
            if at is None or at.target != alone(improvement.head):
                raise AliasConflict(elsewhere)
            if not ahead:
                raise AliasConflict(f"its lead over version {improvement.head} in folds is within the standard error")

        if at is None or at.target != alone(at.version):
            return elsewhere
        move = Move(improvement.task, LIVE, alone(improvement.version or 0), at.target.tag)
        try:
            await self.moves.move(move, context, unless_compared=require_lead)
        except OneBertError as error:
            return error.detail
        return None

    def _require(self, context: Context) -> None:
        """Raises ShuttingDown or Forbidden if an improvement must begin no more, or go on."""
        if self.edge.draining:
            raise ShuttingDown("the server is stopping, and improves nothing any more")
        if not self.keys.holds(context.principal):
            raise Forbidden("the key or token that asked for the improvement is no longer valid")

    async def _require_room(self, task: str, size: int, context: Context) -> None:
        await asyncio.wrap_future(self.registrars.submit(self.catalog.require_room, task, size, context))

    async def _train(
        self, places: Places, context: Context, request: Mapping[str, Any], on_progress: OnProgress = lambda _: None
    ) -> Done:
        await places.take(context.principal.name)
        try:
            if request["improve"]:
                self._require(context)
            return await asyncio.wrap_future(self.worker.ask(request, on_progress))
        finally:
            places.give_back()

    async def _store(self, task: str, facts: Done, context: Context) -> UploadResult:
        with self.receiving.admitted(context.principal.name) as incoming:
            async with self.receiving.turn(incoming):
                content = base64.b64decode(facts["content"])
                upload = self.uploader.submit(self.catalog.upload_trained, task, content, context)
                return await asyncio.wrap_future(upload)

    def _is_live(self, task: str, version: int) -> bool:
        at = self.catalog.directory.task(task, limit=0).aliases.get(LIVE)
        return at is not None and at.target == alone(version)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        running = asyncio.create_task(work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running
