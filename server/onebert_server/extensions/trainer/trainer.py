"""Makes versions of examples, the exact head or the vectors of labels' names, and uploads them as a client would."""

import base64
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from onebert_server.access.context import Context
from onebert_server.extensions.trainer.worker import Done, Worker
from onebert_server.fairness.places import PartByPart
from onebert_server.fairness.shares import Permits
from onebert_server.runtime import Runtime
from onebert_server.threads import run_in, to_the_end
from onebert_server.versions.catalog import UploadResult
from onebert_store.errors import DeadlineExceeded, TooLarge
from onebert_store.file.manifest import SIAMESE, head_width
from onebert_store.registry.names import LIVE
from onebert_store.registry.target import alone

# Requests with examples in memory.
MAX_WAITING = 64
# Rows times labels times numbers of a row's vector: some eight seconds of one core.
MOST_FITTED = 100_000_000
_NOT_LIVE = "it is not live, since one constant answer is as good: send more examples, or promote it"

Rows = Sequence[Mapping[str, Any]]


class CreatedVersion(NamedTuple):
    """A version, the worker's facts about it, and whether it is live."""

    taken: UploadResult
    facts: Done
    live: bool


class Trainer:
    """Has the worker train one request after another, principals round robin; use it from one event loop."""

    def __init__(self, worker: Worker, thread: ThreadPoolExecutor, runtime: Runtime) -> None:
        self.worker = worker
        self._runtime, self._catalog, self._rates = runtime, runtime.catalog, runtime.admission.rates
        self._training = PartByPart(thread, at_once=1, most=1)
        full = "too many requests with examples are waiting; try again soon"
        self._permits = Permits(MAX_WAITING, full, "others wait with their examples; try again soon")

    async def create(self, task: str, rows: Rows, context: Context) -> CreatedVersion:
        """Makes the exact head of the rows the next version of a task.

        The first version is live if it is better than one constant answer.

        Until the version is being stored a cancelled caller, or a late one, gets none; after that it is made.

        Raises:
            Forbidden, OverQuota, TooLarge: see `Catalog.upload_trained`; nothing is trained without room.
            InvalidData: training refuses the rows.
            TrainerFailed: the training process ended.
            DeadlineExceeded, ShuttingDown: it is late; the server stops.
        """
        principal = context.principal
        self._rates.require_quota(principal)
        with self._permits.held(principal.name):
            tokens = await self._tokens(rows, context)
            self._require_small(rows)
            await run_in(self._runtime.registrars, self._catalog.require_room, task, 0, context)
            self._rates.count(principal, 1, tokens)
            request = {"task": task, "rows": rows}
            [facts] = await self._training.run(principal.name, [1], lambda _: [self.worker.ask(request)])
            taken = await self._store(task, facts, context)
        at = self._catalog.directory.task(task, limit=0).aliases.get(LIVE)
        if not facts["useful"] and at is None:
            facts = {**facts, "notes": [*facts["notes"], _NOT_LIVE]}
        return CreatedVersion(taken, facts, at is not None and at.target == alone(taken.entry.version))

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

    def _require_small(self, rows: Rows) -> None:
        """Raises TooLarge if one core takes more than seconds to fit the head; none is fitted for names alone."""
        hidden = self._runtime.hosts[0].base.config.hidden_size
        labels = len({label for row in rows for label in row.get("labels", [row.get("label")])})
        width = head_width(SIAMESE, hidden) if "text_pair" in rows[0] else hidden
        if "text" in rows[0] and len(rows) * labels * width > MOST_FITTED:
            raise TooLarge(
                f"{len(rows)} examples times {labels} labels are {len(rows) * labels}, and the server fits at most"
                f" {MOST_FITTED // width}: send fewer of each label, or push the result of onebert train"
            )

    async def _store(self, task: str, facts: Done, context: Context) -> UploadResult:
        def upload() -> UploadResult:
            # On the thread that stores: a request that was refused must make no version.
            if time.monotonic() >= context.deadline:
                raise DeadlineExceeded("the version was not there in time; ask with a longer X-Request-Timeout")
            return self._catalog.upload_trained(task, base64.b64decode(facts["content"]), context, facts["useful"])

        with self._runtime.receiving.admitted(context.principal.name) as incoming:
            async with self._runtime.receiving.place(incoming):
                return await to_the_end(run_in(self._runtime.uploader, upload))
