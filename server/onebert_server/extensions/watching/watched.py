"""A version that is watched: its repeats left out, its last window beside its reference, its alarm on or off."""

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from onebert_server.contract.declared import as_dict
from onebert_server.extensions.watching.alarms import OVER, Judged, judge, shares_of
from onebert_server.extensions.watching.learning import is_learned
from onebert_server.extensions.watching.windows import PARTS, Live, Segment, joined, places_of
from onebert_server.observed import Seen
from onebert_store.file.reference import PART, WINDOW, Reference

# Number of labels in an alarm: the labels that moved furthest.
_NAMED = 3


class Watched:
    """A version that has answered; one thread counts, a second one judges.

    Attributes:
        reference: the file's, or the learned one, complete or not.
        answers: number of counted answers since the start.
        repeats: number of answers that were not counted, because the text was among the last 500.
        judged: the last window beside the reference; None below 100 answers.
        alarm_since: None while there is no alarm.
    """

    __slots__ = (
        *("_part", "_place", "_places", "_texts", "_window"),
        *("alarm_since", "answers", "judged", "labels", "reference", "repeats"),
    )

    def __init__(self, labels: Sequence[str], reference: Reference | None) -> None:
        self.labels, self.reference = labels, reference
        self.answers = self.repeats = 0
        self.judged: Judged | None = None
        self.alarm_since: datetime | None = None
        self._places = places_of(labels)
        # Hashes of the last 500 texts, so that a window has each text once, and the place of the next one.
        self._texts, self._place = bytearray(4 * WINDOW), 0
        self._part = Segment(len(self._places))
        self._window = deque[Live](maxlen=PARTS)

    @property
    def learns(self) -> bool:
        """Whether the next part belongs to the reference."""
        return not is_learned(self.reference)

    @property
    def window(self) -> int:
        """The number of answers in the last window; while it learns, of the reference."""
        if self.learns:
            return 0 if self.reference is None else self.reference.rows
        return 0 if self.judged is None else self.judged.live.answers

    def count(self, answers: Sequence[Seen]) -> list[Segment]:
        """Counts answers without repeated texts; returns the full parts."""
        new = list[Seen]()
        for answer in answers:
            if answer.text is None:
                continue
            hashed = answer.text.to_bytes(4, "little")
            # A set would be faster, by some microseconds, and 20 times as large. A search in bytes takes two texts for
            # one in one case of two million.
            if hashed in self._texts:
                self.repeats += 1
                continue
            self._texts[self._place : self._place + 4] = hashed
            self._place = (self._place + 4) % len(self._texts)
            new.append(answer)
        self.answers += len(new)
        full = []
        while new:
            new = self._part.add(new, self._places)
            if self._part.answers == PART:
                full.append(self._part)
                self._part = Segment(len(self._places))
        return full

    def resume(self, since: datetime, live: Live) -> None:
        """Goes on with an alarm that a window has raised."""
        if self.reference is not None:
            self.alarm_since, self.judged = since, judge(self.reference, live)

    def judge(self, part: Segment, level: float) -> bool | None:
        """Judges the window that ends with a part; returns whether the alarm is on now if that has changed."""
        if (reference := self.reference) is None:
            return None
        self._window.append(part.counted(reference.edges, len(reference.scores)))
        self.judged = judge(reference, joined(self._window))
        if self.alarm_since is None and self.judged.p < level:
            self.alarm_since = datetime.now(UTC)
            return True
        if self.alarm_since is not None and self.judged.p >= OVER:
            self.alarm_since = None
            return False
        return None

    def change(self) -> dict[str, Any]:
        """Describes the judged window: labels that moved furthest, mean top scores, number of repeats."""
        reference, judged = self.reference, self.judged
        if reference is None or judged is None:
            return {}
        moved = [as_dict(share) for share in shares_of(self.labels, reference, judged.live)[:_NAMED]]
        scores = mean_scores(reference, judged.live) if reference.scores else None
        return {"words": judged.words, "labels": moved, "scores": scores, "repeats": self.repeats}


def mean_scores(reference: Reference, live: Live | None) -> dict[str, float | None]:
    """The mean top score of the reference and of a window."""
    return {"reference": reference.confidence, "live": live.confidence / live.answers if live is not None else None}
