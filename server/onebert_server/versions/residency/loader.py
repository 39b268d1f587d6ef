"""The thread that loads what is asked for, tries again what failed, and looks at stored files when it has time."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from onebert_encoder.compute.threads import compute_with
from onebert_server.versions.residency.residents import RETRY_AT_MOST, Residents
from onebert_server.versions.version import State, Version
from onebert_store.errors import BlobsAway, NotFound, OneBertError, ShuttingDown
from onebert_store.registry.registry import Registry

logger = logging.getLogger("onebert.loader")

# Versions that are loaded one after the other before anything else is looked at.
LOADED_TOGETHER = 16
# Seconds between two stored files that are read and compared with their digests while nothing else is to be done.
SCRUB_PAUSE = 1.0
# Seconds without such reading after the place of all files did not answer: versions that have copies on this machine
# wait meanwhile for no silent bucket.
AWAY_PAUSE = 30.0
# Seconds of rest for each second in which it is loaded what nobody has asked for: answers are computed meanwhile.
LATER_REST = 4.0
# Tasks whose versions are listed at once for that.
SCRUBBED_TOGETHER = 100


class Loader:
    """Does everything slow that versions need on one thread, so that requests for what is in memory never wait for it.

    The thread computes alone: more threads of its own would slow the engine's batches down (see Engine).
    """

    def __init__(self, residents: Residents, registry: Registry) -> None:
        self._residents = residents
        self._directory = residents.directory
        self._queue = residents.queue
        self._registry = registry
        self._to_scrub: deque[Version] = deque()
        self._scrub_at = 0.0
        self._scrubbed = ""  # the last task whose versions are in it
        self._later: deque[Version] = deque()
        self._thread = threading.Thread(target=self._run, name="onebert-loader", daemon=True)

    def start(self, later: Iterable[Version] = ()) -> None:
        """Begins to load what is asked for, and `later` while nothing is, as long as the bank has room."""
        self._later.extend(later)
        self._thread.start()

    @property
    def dead(self) -> bool:
        """Whether the thread has ended although nobody closed the loader."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._queue.closed

    def close(self) -> None:
        """Loads nothing more; to be called after the engine was closed, for whose answers the thread may wait."""
        self._queue.close()
        if self._thread.is_alive():
            self._thread.join()
        for version in self._queue.clear():
            self._directory.unloaded(version, ShuttingDown("the server is shutting down"))

    def look_again(self) -> None:
        """Compares the stored file of one version with its digest; another version's with each call."""
        if time.monotonic() < self._scrub_at:
            return
        if not self._to_scrub:
            tasks = self._directory.tasks(self._scrubbed, SCRUBBED_TOGETHER)
            self._scrubbed = tasks[-1].name if tasks else ""
            self._to_scrub.extend(version for task in tasks for version in task.versions.values())
        if self._to_scrub:
            self.look_at(self._to_scrub.popleft())

    def look_at(self, version: Version) -> None:
        """Reads a version's stored file and compares it with its digest; what is wrong is logged, shown and counted.

        Puts it off as soon as a version is to be loaded: requests wait for that one.
        """
        if version.retired or version.state is State.UNAVAILABLE:
            return
        try:
            whole = self._registry.verify(version.entry, lambda: bool(self._queue) or self._queue.closed)
        except NotFound:
            return
        except BlobsAway:
            self._to_scrub.append(version)
            self._scrub_at = time.monotonic() + AWAY_PAUSE
        except OneBertError as error:
            self._residents.found_damaged(version, error)
        else:
            if whole:
                self._directory.mark_damaged(version, None)
            else:
                self._to_scrub.appendleft(version)

    def _run(self) -> None:
        compute_with(1)
        while not self._queue.closed:
            taken: list[Version] = []
            try:
                taken = [one for one in self._take() if not self._directory.give_up_unwanted(one)]
                if taken:
                    self._residents.load(taken)
                elif self._later:
                    self._load_later()
                elif not self._queue.closed:
                    self.look_again()
            # Without this thread no version would be loaded any more, so it outlives even a fault of this code.
            except Exception as error:
                logger.exception("the loader goes on after an unexpected error")
                self._give_up(taken, error)

    def _load_later(self) -> None:
        """Loads one of those that the start has left, unless another would have to go for it; then takes a rest."""
        version = self._later.popleft()
        if not self._directory.begin_loading(version):
            return
        started = time.monotonic()
        if not self._residents.load([version], may_evict=False):
            self._later.clear()
        self._queue.wait(LATER_REST * (time.monotonic() - started))

    def _give_up(self, taken: Sequence[Version], error: Exception) -> None:
        """Answers those who wait for versions that an unexpected error left half loaded; then takes a rest."""
        reason = f"loading failed with {type(error).__name__}; the log says where"
        for version in taken:
            if version.state is State.LOADING:
                self._directory.failed(version, reason, time.monotonic() + RETRY_AT_MOST)
        self._queue.wait(SCRUB_PAUSE)

    def _take(self) -> list[Version]:
        """What is to be loaded next, waiting for it; nothing where there is time to look at a stored file."""
        self._queue.wait(0.0 if self._later else SCRUB_PAUSE)
        if not self._queue.closed:
            self._directory.try_again()
        return self._queue.take(LOADED_TOGETHER)
