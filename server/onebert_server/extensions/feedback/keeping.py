"""Writes kept answers to the sample store on a thread of its own, redacted, and deletes what is kept no longer."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, islice
from math import inf

from onebert_server.logs import Seldom, log_failure
from onebert_server.observed import Kept
from onebert_store import plugins
from onebert_store.errors import InvalidSettings, OneBertError, StorageUnavailable
from onebert_store.samples.records import Sample
from onebert_store.samples.store import SampleStore

logger = logging.getLogger("onebert.samples")

# Bytes of answers that wait to be written; further ones are dropped and counted.
MAX_BYTES = 2**24
# Most answers per transaction, and seconds in which they gather: a transaction for each would delay other answers more.
# Bytes per transaction: see `RESERVE_BYTES` of the database.
WRITTEN_TOGETHER, GATHERED, WRITTEN_BYTES = 256, 0.1, 2**20
# Seconds between two sweeps of all tasks, for answers that are too old and deleted tasks; a task that has grown by
# this share of its bound is swept at once.
SWEEP_EVERY, GROWTH = 600.0, 0.1
# Ids of unknown tasks in one log line.
_LOGGED_IDS = 10

Redactor = Callable[[str], str]
"""Returns a text without personal data; a text is not kept if it raises."""


def redactor_named(name: str | None) -> Redactor | None:
    """Loads a plug-in; raises InvalidSettings if there is no such plug-in or it cannot be loaded."""
    if name is None:
        return None
    redactors = plugins.installed(plugins.REDACTORS)
    if name not in redactors:
        raise InvalidSettings(f"ONEBERT_REDACTOR: no installed package has a redactor {name}")
    redactor: Redactor = redactors[name].load("the redactor ")
    return redactor


class SampleKeeper:
    """Takes chosen answers in the process with the engine; thread-safe.

    `count` gets the number of answers by result: `kept`, `dropped` (too many at once), `redactor` or `failed`.
    """

    def __init__(self, store: SampleStore, redactor: Redactor | None, count: Callable[[str, int], None]) -> None:
        self._store = store
        self._redactor = redactor
        self._count = count
        self._seldom = Seldom(logger)
        self._changed = threading.Condition()
        self._waiting: list[Kept] = []
        self._bytes = 0
        # New samples since the last sweep, by the ids of tasks.
        self._grown = Counter[str]()
        self._ended = False
        # Held while samples are written: the deletion of one comes before or after.
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="onebert-samples", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Writes what waits, and ends."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def take(self, answers: Sequence[Kept], dropped: int) -> None:
        """The hook: takes answers of this process or of a front end, which has `dropped` others."""
        with self._changed:
            for answer in answers:
                if self._bytes + answer.size > MAX_BYTES:
                    dropped += 1
                else:
                    self._waiting.append(answer)
                    self._bytes += answer.size
            self._changed.notify()
        if dropped:
            self._count("dropped", dropped)

    def redacted(self, texts: Sequence[str]) -> tuple[str, ...] | None:
        """Returns the texts as they may be kept; None, which is counted, if the redactor fails."""
        if self._redactor is None:
            return tuple(texts)
        try:
            redacted = tuple(self._redactor(text) for text in texts)
            if all(isinstance(text, str) for text in redacted):
                return redacted
        # Catch everything: it is other people's code.
        except Exception as error:
            self._seldom.warning("the redactor failed with %s; the text is not kept", type(error).__name__)
        self._count("redactor", 1)
        return None

    def delete_sample(self, task: str, id: str, until: float = inf) -> None:
        """Deletes one sample, also one that waits to be written; raises SampleNotFound."""
        self.flush({id}, until)
        self._store.delete_sample(task, id, until)

    @contextmanager
    def swept(self, task: str, until: float) -> Iterator[None]:
        """The hook around a deletion: what is kept of a task goes with it, and without versions the task is gone."""
        owner = self._store.owner(task)
        yield
        # The task is deleted, whatever becomes of the rows now; the next sweep of all tasks takes them.
        self._tried(partial(self._store.sweeper.sweep, [owner.task], until))

    def flush(self, ids: Collection[str], until: float) -> None:
        """Writes waiting answers with these ids, so that feedback or a deletion finds them.

        Raises StorageUnavailable or StorageFull if they cannot be written, or other ones keep the database busy until
        then.
        """
        self._write_some(lambda answer: answer.id in ids, until)

    def _run(self) -> None:
        self._tried(self._store.prepare)
        next_sweep = time.monotonic()
        while not self._ended:
            if time.monotonic() >= next_sweep:
                self._tried(self._sweep)
                next_sweep = time.monotonic() + SWEEP_EVERY
            with self._changed:
                if self._changed.wait_for(lambda: self._waiting or self._ended, next_sweep - time.monotonic()):
                    self._changed.wait_for(lambda: len(self._waiting) >= WRITTEN_TOGETHER or self._ended, GATHERED)
            self._tried(self._write_some)
        while self._waiting and self._tried(self._write_some):
            pass

    def _write_some(self, wanted: Callable[[Kept], bool] = lambda _: True, until: float = inf) -> None:
        # Taken and written under one lock: whoever looks for an answer finds it here or in the store.
        if not self._writing.acquire(timeout=min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)):
            raise StorageUnavailable("answers are still being written: another process holds the database")
        try:
            with self._changed:
                wanted_answers = [*islice(filter(wanted, self._waiting), WRITTEN_TOGETHER)]
                sizes = accumulate(answer.size for answer in wanted_answers[1:])
                together = wanted_answers[: 1 + sum(size <= WRITTEN_BYTES for size in sizes)]
                taken = {id(answer) for answer in together}
                self._waiting = [answer for answer in self._waiting if id(answer) not in taken]
                self._bytes -= sum(answer.size for answer in together)
            if together:
                self._write(together, until)
        finally:
            self._writing.release()

    def _tried(self, work: Callable[[], object]) -> bool:
        try:
            work()
            return True
        except OneBertError as error:
            self._seldom.warning("kept answers: %s", error.detail)
        # Catch everything: without this thread nothing is kept any more.
        except Exception as error:
            log_failure(logger, "keeping answers", error)
        return False

    def _sweep(self, tasks: Collection[str] | None = None) -> None:
        if unknown := self._store.sweeper.sweep(tasks):
            ids = ", ".join(rows.id for rows in unknown[:_LOGGED_IDS])
            logger.warning(
                "the registry does not know %d of the tasks with kept answers or feedback (%s%s): put the one that "
                "does back; `onebert store gc` removes the rows after 24 hours",
                *(len(unknown), ids, ", …" if len(unknown) > _LOGGED_IDS else ""),
            )

    def _write(self, together: Sequence[Kept], until: float) -> None:
        redacted = [(answer, self.redacted(answer.texts)) for answer in together]
        samples = [(answer.keeping, _sample(answer, texts)) for answer, texts in redacted if texts is not None]
        try:
            tasks = self._store.keep([(keeping.id, sample) for keeping, sample in samples], until)
        except Exception as error:
            if until < inf and isinstance(error, StorageUnavailable):
                # A request had too little time; the keeper has more.
                self._put_back([answer for answer, texts in redacted if texts is not None])
            else:
                self._count("failed", len(samples))
            raise
        keepings = [keeping for keeping, _ in samples if keeping.id in tasks]
        self._count("kept", len(keepings))
        self._grown.update(tasks[keeping.id] for keeping in keepings)
        bounds = {tasks[keeping.id]: keeping.most for keeping in keepings}
        full = [task for task, bound in bounds.items() if self._grown[task] > GROWTH * bound]
        # A request does not wait for a sweep: the keeper's next write has one.
        if full and until == inf:
            for task in full:
                del self._grown[task]
            self._tried(partial(self._sweep, full))

    def _put_back(self, answers: Sequence[Kept]) -> None:
        with self._changed:
            self._waiting[:0] = answers
            self._bytes += sum(answer.size for answer in answers)
            self._changed.notify()


def _sample(answer: Kept, texts: tuple[str, ...]) -> Sample:
    summary, at = answer.answer, datetime.fromtimestamp(answer.at, UTC)
    about = summary.task, answer.id, summary.version, at, answer.principal
    return Sample(*about, texts, summary.labels, summary.score, answer.keeping.share)
