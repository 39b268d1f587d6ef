"""Keeps learned references and alarms in the store, for the next start and other replicas."""

from contextlib import suppress
from datetime import datetime
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError

from onebert_server.extensions.watching.learning import learned
from onebert_server.extensions.watching.windows import Live, Segment
from onebert_server.telemetry.counts import Key
from onebert_store.file.fields import Finite, Strict
from onebert_store.file.reference import Count, Counts, Reference
from onebert_store.registry.documents import Documents

# The names of a version's documents.
_REFERENCE, _ALARM = "watching", "alarm"


class KeptAlarm(Strict):
    """An alarm and the window that raised it; fields as in `Live`."""

    since: datetime
    answers: Annotated[Count, Field(ge=1)]
    labels: Counts
    scores: Counts
    confidence: Finite

    @classmethod
    def of(cls, since: datetime, live: Live) -> "KeptAlarm":
        counts = {"labels": live.labels.tolist(), "scores": live.scores.tolist()}
        return cls(since=since, answers=live.answers, confidence=live.confidence, **counts)

    @property
    def live(self) -> Live:
        return Live(self.answers, np.array(self.labels), np.array(self.scores, np.int64), self.confidence)


class WatchDocuments:
    """Reads and writes them; every method blocks, and raises StorageUnavailable if the database fails."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def alarms(self) -> list[Key]:
        """Returns the versions with an alarm."""
        return self._documents.versions(_ALARM)

    def alarm(self, key: Key) -> KeptAlarm | None:
        content = self._documents.read_version(*key, _ALARM)
        # A damaged one is raised anew.
        with suppress(ValidationError):
            return None if content is None else KeptAlarm.model_validate_json(content)
        return None

    def set_alarm(self, key: Key, alarm: KeptAlarm | None) -> None:
        """Keeps an alarm, or forgets the one that is over; raises NotFound without its version."""
        content = None if alarm is None else alarm.model_dump_json()
        self._documents.update_version(*key, _ALARM, lambda _: content)

    def reference(self, key: Key) -> Reference | None:
        """Returns the reference that the version has learned so far."""
        return _reference(self._documents.read_version(*key, _REFERENCE))

    def learn(self, key: Key, part: Segment) -> Reference | None:
        """Adds a part to the reference until it is learned; returns it. Raises NotFound without its version."""
        content = self._documents.update_version(
            *key, _REFERENCE, lambda content: learned(_reference(content), part).model_dump_json()
        )
        return _reference(content)


def _reference(content: str | None) -> Reference | None:
    # A damaged one is learned anew.
    with suppress(ValidationError):
        return None if content is None else Reference.model_validate_json(content)
    return None
