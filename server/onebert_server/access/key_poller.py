"""Copies the registry's keys into a server's key ring: a change by any replica takes effect here within seconds."""

import logging
import time
from contextlib import suppress
from datetime import datetime
from threading import Event, Lock, Thread

from onebert_server.access.keys import Holder, KeyRing
from onebert_server.access.principal import holder_of
from onebert_store.errors import OneBertError
from onebert_store.registry.grants import Grant, KeyRecord
from onebert_store.registry.keys import Keys, KeysMark
from onebert_store.registry.records import Actor

logger = logging.getLogger("onebert.keys")

# Seconds between two polls of the registry. A poll without news is one small query.
EVERY = 2.0


class KeyPoller:
    """Polls for changed keys on its own thread: no request ever waits for the database to check a key.

    While the registry cannot be read, the last keys stay valid until they expire: a failed database must not take down
    every replica that can still answer. `age` is the time since the last successful poll, in seconds.
    """

    def __init__(self, keys: Keys, ring: KeyRing, every: float = EVERY) -> None:
        self._keys = keys
        self._ring = ring
        self._every = every
        self._mark: KeysMark | None = None
        self._read_at = time.monotonic()
        self._failing = False
        self._polling = Lock()
        self._closed = Event()
        self._thread = Thread(target=self._run, name="onebert-keys", daemon=True)

    @property
    def age(self) -> float:
        return time.monotonic() - self._read_at

    def poll(self) -> None:
        """Reads the registry's keys if they have changed; after an OneBertError they stay as they are."""
        with self._polling:
            # Read the mark before the rows: a key that is made in between is read twice, and never missed.
            mark = self._keys.mark()
            if mark != self._mark:
                valid = [record for record in self._keys.all() if record.revoked_at is None]
                self._ring.replace({record.digest: _holder(record) for record in valid}, is_open=not mark.created)
                self._mark = mark
            self._read_at = time.monotonic()

    def create(self, grant: Grant, expires_at: datetime | None, by: Actor) -> tuple[KeyRecord, str]:
        """Makes a key, valid here at once if the registry can be read; see `Keys.create`."""
        created = self._keys.create(grant, expires_at, by, keep_admin=self._ring.is_open)
        # The key exists, and its secret is shown only this once, so a failing registry must not hide it. The key
        # becomes valid here later.
        with suppress(OneBertError):
            self.poll()
        return created

    def revoke(self, key_id: str, by: Actor) -> None:
        """Revokes a key, effective here at once; see `Keys.revoke`."""
        self._keys.revoke(key_id, by)
        self.poll()

    def start(self) -> None:
        """Polls once, then starts the thread; raises OneBertError if the registry cannot be read."""
        self.poll()
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every):
            try:
                self.poll()
                self._failing = False
            # Catch everything: without this thread a revoked key would stay valid for ever.
            except Exception as error:
                if not self._failing:
                    code = error.code if isinstance(error, OneBertError) else type(error).__name__
                    logger.error("the registry's keys cannot be read (%s): those read last stay in force", code)
                self._failing = True


def _holder(record: KeyRecord) -> Holder:
    expires = None if record.expires_at is None else record.expires_at.timestamp()
    return Holder(holder_of(record.grant), expires)
