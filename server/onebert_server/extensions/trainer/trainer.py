"""Makes versions of examples: the exact head at once, the default method in the background; decides about `live`."""

import asyncio
import base64
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from onebert_server.access.context import Context
from onebert_server.extensions.trainer.work import Rows, work_of
from onebert_server.extensions.trainer.worker import Done, OnProgress, Worker
from onebert_server.fairness.places import Places
from onebert_server.fairness.shares import Permits
from onebert_server.logs import log_failure
from onebert_server.observed import Observed
from onebert_server.runtime import Runtime
from onebert_server.threads import run_in, to_the_end
from onebert_server.versions.catalog import UploadResult
from onebert_server.versions.moves import Move
from onebert_server.versions.version import Version
from onebert_store import errors
from onebert_store.registry.names import LIVE
from onebert_store.registry.target import alone

logger = logging.getLogger("onebert.trainer")

# Requests with examples in memory, and improvements that the server remembers.
MAX_WAITING, MAX_IMPROVEMENTS = 64, 1000
# Times that an improvement counts its tokens: the usual epochs of the default method.
EPOCHS = 4
_NOT_LIVE = "it is not live, since one constant answer is as good: send more examples, or promote it"
UNDER_WAY = ("waiting", "training", "measuring")


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
        versions: the exact head, with which the result is compared, and the result.
        reason: why the result is not live, or why the improvement failed.
    """

    versions: list[Version]
    metric: str
    head_score: float
    state: str = "waiting"
    step: int = 0
    steps: int = 0
    began: float | None = None
    seconds: float = 0.0
    score: float | None = None
    live: bool = False
    reason: str | None = None

    @property
    def task(self) -> str:
        return self.versions[0].entry.task

    @property
    def head(self) -> int:
        return self.versions[0].entry.version

    @property
    def version(self) -> int | None:
        return self.versions[1].entry.version if len(self.versions) > 1 else None

    def is_of(self, task: str) -> bool:
        """Whether a task has one of its versions; a task that took the name of a deleted one has none."""
        return self.task == task and not all(version.retired for version in self.versions)

    def update(self, progress: Mapping[str, Any]) -> None:
        self.began = self.began or time.monotonic()
        self.seconds = time.monotonic() - self.began
        self.state = "measuring" if progress["measuring"] else "training"
        self.step, self.steps = progress["step"], progress["steps"]


class Trainer:
    """Has the worker train, and uploads the results as a client would; use it from one event loop.

    One exact head of each principal, and one improvement, are in the worker at a time; improvements are fair-queued by
    principal.
    """

    def __init__(self, worker: Worker, runtime: Runtime) -> None:
        self.worker = worker
        self._runtime, self._catalog, self._rates = runtime, runtime.catalog, runtime.admission.rates
        self._heads, self._improving = WeakValueDictionary[str, Places](), Places(1)
        full = "too many requests with examples are waiting; try again soon"
        self._permits = Permits(MAX_WAITING, full, "others wait with their examples; try again soon")
        self._improvements = deque[Improvement](maxlen=MAX_IMPROVEMENTS)
        # Tasks whose improvement waits for its exact head.
        self._asked: set[str] = set()
        self._running: set[asyncio.Task[None]] = set()

    async def create(self, task: str, rows: Rows, improve: bool, context: Context) -> CreatedVersion:
        """Makes the exact head of the rows the next version of a task; improves it if asked.

        The first version is live if it is better than one constant answer.

        Until the version is being stored a cancelled caller, or a late one, ends the work; after that it is made.

        Raises:
            Forbidden, OverQuota, TooLarge: see `Catalog.upload_trained` and `work_of`; nothing is trained without room.
            Improving: an improvement of the task is under way.
            InvalidData: training refuses the rows.
            TrainerFailed: the training process ended.
            DeadlineExceeded, ShuttingDown: it is late; or an improvement is asked for, and the server drains.
        """
        if improve:
            self._require(context)
            if task in self._asked or any(improvement.state in UNDER_WAY for improvement in self._of(task)):
                raise errors.Improving(f"{task} is being improved; ask again when that has ended")
        self._rates.check(context.principal)
        improving = {task} if improve else set[str]()
        with self._permits.held(context.principal.name):
            self._asked |= improving
            try:
                return await self._create(task, rows, improve, context)
            finally:
                self._asked -= improving

    def improvement(self, task: str) -> Improvement:
        """Returns the last improvement of a task; raises ImprovementNotFound."""
        if not (improvements := self._of(task)):
            raise errors.ImprovementNotFound(f"this server has improved nothing of {task} since it started")
        return improvements[-1]

    def _of(self, task: str) -> list[Improvement]:
        return [improvement for improvement in self._improvements if improvement.is_of(task)]

    async def _create(self, task: str, rows: Rows, improve: bool, context: Context) -> CreatedVersion:
        tokens = await self._tokens(rows, context)
        work = work_of(rows, tokens, self._runtime.hosts[0])
        await self._require_room(task, 0, context)
        self._rates.count(context.principal, 1, tokens)
        request = {"task": task, "rows": rows, "improve": False, "work": work}
        head = self._heads.setdefault(context.principal.name, Places(1))
        facts = await self._train(head, context, request)
        taken = await self._store(lambda: task, facts, context)
        version, improvement = taken.entry.version, None
        if improve:
            head_version = self._catalog.directory.version(task, version)
            improvement = Improvement([head_version], facts["metric"], facts["score"])
            self._improvements.append(improvement)
            self._permits.add(context.principal.name, 1)
            context = replace(context, deadline=inf, observed=Observed())
            running = asyncio.create_task(
                self._improve(improvement, {**request, "improve": True, "work": inf}, tokens, context)
            )
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        if not facts["useful"] and LIVE not in self._catalog.directory.task(task, limit=0).aliases:
            facts = {**facts, "notes": [*facts["notes"], _NOT_LIVE]}
        return CreatedVersion(taken, facts, self._is_live(task, version), improvement)

    async def _tokens(self, rows: Rows, context: Context) -> int:
        texts = [
            (row["text"], row["text_pair"])
            if "text_pair" in row
            else row.get("text") or row.get("description") or row["label"]
            for row in rows
        ]
        tokenizing, base = self._runtime.answerer.tokenizing, self._runtime.hosts[0].digest
        pieces = await tokenizing.split(context.principal.name, base, texts, placed=False)
        return sum(len(half) for text in pieces for half in text.ids)

    async def _improve(
        self, improvement: Improvement, request: Mapping[str, Any], tokens: int, context: Context
    ) -> None:
        def require_wanted() -> str:
            """Returns the task's present name; raises an error if nobody may have the result any more."""
            self._require(context)
            # A task that was deleted meanwhile must not come back by this upload.
            return self._catalog.directory.version(improvement.task, improvement.head).entry.task

        def on_progress(progress: Mapping[str, Any]) -> None:
            require_wanted()
            improvement.update(progress)

        try:
            # The head is a part of the result.
            await self._require_room(improvement.task, improvement.versions[0].entry.size, context)
            self._rates.count(context.principal, 0, EPOCHS * tokens)
            facts = await self._train(self._improving, context, request, on_progress)
            taken = await self._store(require_wanted, facts, context)
            improvement.score = facts["score"]
            improvement.versions.append(self._catalog.directory.version(improvement.task, taken.entry.version))
            improvement.reason = await self._settle(improvement, facts["ahead"], context)
            improvement.live = self._is_live(improvement.task, taken.entry.version)
            improvement.state = "done"
        except Exception as error:
            if not isinstance(error, errors.OneBertError):
                log_failure(logger, "an improvement", error)
            improvement.reason = getattr(error, "detail", "the server failed; its log has more")
            improvement.state = "failed"
        finally:
            self._permits.give_back(context.principal.name, 1)

    async def _settle(self, improvement: Improvement, ahead: bool, context: Context) -> str | None:
        """Moves `live` to the improved version if the task's gate, or without one its lead over the head, allows it.

        Returns why it did not move.
        """
        at = self._catalog.directory.task(improvement.task, limit=0).aliases.get(LIVE)
        elsewhere = f"live does not mean version {improvement.head} alone, with which it is compared"

        def require_lead() -> None:
            if at is None or at.target != alone(improvement.head):
                raise errors.AliasConflict(elsewhere)
            if not ahead:
                raise errors.AliasConflict(
                    f"its lead over version {improvement.head} in folds is within the standard error"
                )

        if at is None or at.target != alone(at.version):
            return elsewhere
        move = Move(improvement.task, LIVE, alone(improvement.version or 0), at.target.tag)
        try:
            await self._runtime.moves.move(move, context, unless_compared=require_lead)
        except errors.OneBertError as error:
            return error.detail
        return None

    def _require(self, context: Context) -> None:
        """Raises ShuttingDown or Forbidden if an improvement must begin no more, or go on."""
        if self._runtime.draining:
            raise errors.ShuttingDown("the server is stopping, and improves nothing any more")
        if not self._runtime.keys.holds(context.principal):
            raise errors.Forbidden("the key or token that asked for the improvement is no longer valid")

    async def _require_room(self, task: str, size: int, context: Context) -> None:
        await run_in(self._runtime.registrars, self._catalog.require_room, task, size, context)

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

    async def _store(self, task: Callable[[], str], facts: Done, context: Context) -> UploadResult:
        def upload() -> UploadResult:
            # On the thread that stores: a request that was refused must make no version.
            if time.monotonic() >= context.deadline:
                raise errors.DeadlineExceeded("the version was not there in time; ask with a longer X-Request-Timeout")
            return self._catalog.upload_trained(task(), base64.b64decode(facts["content"]), context, facts["useful"])

        with self._runtime.receiving.admitted(context.principal.name) as incoming:
            async with self._runtime.receiving.turn(incoming):
                return await to_the_end(run_in(self._runtime.uploader, upload))

    def _is_live(self, task: str, version: int) -> bool:
        at = self._catalog.directory.task(task, limit=0).aliases.get(LIVE)
        return at is not None and at.target == alone(version)
