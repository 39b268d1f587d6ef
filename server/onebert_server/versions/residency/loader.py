"""The thread that loads requested versions, and retries failed ones."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from onebert_encoder.compute.threads import compute_with
from onebert_server.versions.residency.residents import RETRY_AT_MOST, Residents
from onebert_server.versions.version import State, Version
from onebert_store.errors import ShuttingDown

logger = logging.getLogger("onebert.loader")

# Versions that are loaded in a row before the thread does anything else.
LOADED_TOGETHER = 16
# Seconds between two looks for versions whose next try is due; only while nothing else is to be done.
LOOK_EVERY = 1.0
# Seconds of rest for each second of loading that no request asked for: answers are computed meanwhile.
LATER_REST = 4.0


class Loader:
    """Does all slow work for versions on one thread, so that requests for resident versions never wait for it.

    The thread waits for no bucket: other threads fetch files (see Fetches). It computes alone: more threads of its own
    would slow the engine's batches down (see Engine).
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._directory = residents.directory
        self._queue = residents.queue
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

    def _run(self) -> None:
        compute_with(1)
        while not self._queue.closed:
            taken: dict[Version, str] = {}
            try:
                taken = self._take()
                if taken:
                    self._load(taken)
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
        self._queue.wait(LOOK_EVERY)

    def _take(self) -> dict[Version, str]:
        # Versions that no request waits for come one at a time, because a rest follows each.
        later = self._later and not (self._begun and self._begun.state is State.LOADING)
        self._queue.wait(0.0 if later else LOOK_EVERY)
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
