"""The thread that loads requested versions, retries failed ones, and checks stored files when it has time."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future

from onebert_encoder.compute.threads import compute_with
from onebert_server.versions.residency.residents import RETRY_AT_MOST, Residents
from onebert_server.versions.version import State, Version
from onebert_store.errors import BlobsAway, NotFound, OneBertError, ShuttingDown
from onebert_store.registry.registry import Registry

logger = logging.getLogger("onebert.loader")

# Versions that are loaded in a row before the thread does anything else.
LOADED_TOGETHER = 16
# Seconds between two checks of stored files against their digests; only while nothing else is to be done.
SCRUB_PAUSE = 1.0
# Seconds of rest for each second of loading that no request asked for: answers are computed meanwhile.
LATER_REST = 4.0
# Tasks that are listed at once for the checks.
SCRUBBED_TOGETHER = 100


class Loader:
    """Does all slow work for versions on one thread, so that requests for resident versions never wait for it.

    The thread waits for no bucket: other threads fetch files (see Fetches), and check the stored ones. It computes
    alone: more threads of its own would slow the engine's batches down (see Engine).
    """

    def __init__(self, residents: Residents, registry: Registry) -> None:
        self._residents = residents
        self._directory = residents.directory
        self._queue = residents.queue
        self._registry = registry
        self._to_scrub: deque[Version] = deque()
        self._scrubbed = ""  # last task whose versions are in it
        self._scrub: Future[None] | None = None  # the running check
        self._later: deque[Version] = deque()
        self._begun: Version | None = None  # the last one taken
        self._thread = threading.Thread(target=self._run, name="onebert-loader", daemon=True)

    def start(self, later: Iterable[Version] = ()) -> None:
        """Begins to load requested versions, and `later` while nothing is requested, as long as the bank has room."""
        self._later.extend(later)
        self._thread.start()

    @property
    def dead(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive() and not self._queue.closed

    def close(self) -> None:
        """Stops loading; call it after the engine was closed, because the thread may wait for the engine's answers."""
        self._queue.close()
        if self._thread.is_alive():
            self._thread.join()
        for version in dict.fromkeys([*self._queue.clear(), *self._residents.fetches.close()]):
            self._directory.unloaded(version, ShuttingDown("the server is shutting down"))

    def scrub_next(self) -> None:
        """Starts the check of one stored file, the next one with each call, unless the last check still runs."""
        if self._scrub:
            if not self._scrub.done():
                return
            ended, self._scrub = self._scrub, None
            ended.result()
        if not self._to_scrub:
            tasks = self._directory.tasks(self._scrubbed, SCRUBBED_TOGETHER)
            self._scrubbed = tasks[-1].name if tasks else ""
            self._to_scrub.extend(version for task in tasks for version in task.versions.values())
        if self._to_scrub:
            self._scrub = self._residents.fetches.threads.submit(self.scrub, self._to_scrub.popleft())

    def scrub(self, version: Version) -> None:
        """Compares a version's stored file with its digest; damage is logged, shown and counted."""
        if version.retired or version.state is State.UNAVAILABLE:
            return
        try:
            if self._registry.verify(version.entry, lambda: self._queue.closed):
                self._directory.mark_damaged(version, None)
        except NotFound:
            return
        except BlobsAway:
            self._to_scrub.append(version)
        except OneBertError as error:
            self._residents.found_damaged(version, error)

    def _run(self) -> None:
        compute_with(1)
        while not self._queue.closed:
            taken: dict[Version, str] = {}
            try:
                taken = self._take()
                if taken:
                    self._load(taken)
                elif not self._queue.closed:
                    self.scrub_next()
            # Catch everything: without this thread no version would be loaded any more.
            except Exception as error:
                logger.exception("the loader goes on after an unexpected error")
                self._give_up(taken, error)

    def _load(self, taken: dict[Version, str]) -> None:
        """Loads versions; rests afterwards if no request waits for any of them."""
        wanted = any(version.pins or version.tried_again for version in taken)
        started = time.monotonic()
        room = self._residents.load(taken)
        if not wanted:
            if not room and self._begun in taken:
                self._later.clear()
            self._queue.wait(LATER_REST * (time.monotonic() - started))

    def _give_up(self, taken: Iterable[Version], error: Exception) -> None:
        """Fails the versions that an unexpected error left half loaded; then rests."""
        reason = f"loading failed with {type(error).__name__}; the log says where"
        for version in taken:
            if version.state is State.LOADING:
                self._directory.failed(version, reason, time.monotonic() + RETRY_AT_MOST)
        self._queue.wait(SCRUB_PAUSE)

    def _take(self) -> dict[Version, str]:
        """Waits for the next versions to load; returns none if there is time to check a stored file."""
        # Versions that no request waits for come one at a time, because a rest follows each.
        later = self._later and not (self._begun and self._begun.state is State.LOADING)
        self._queue.wait(0.0 if later else SCRUB_PAUSE)
        if self._queue.closed:
            return {}
        self._directory.try_again()
        batch = self._queue.take(LOADED_TOGETHER).items()
        wanted = {version: who for version, who in batch if not (who and self._directory.give_up_unwanted(version))}
        taken = {**self._residents.fetches.arrived(), **wanted}
        if later and not taken:
            self._begun = self._later.popleft()
            if self._directory.begin_loading(self._begun):
                taken[self._begun] = ""
        return taken
