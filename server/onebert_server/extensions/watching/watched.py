"""A version that is watched: its repeats left out, its reference learned if it has none, its alarm on or off."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from onebert_server.contract.declared import as_dict
from onebert_server.extensions.watching.alarms import OVER, Judged, cause_of, judge, shares_of, shift_of
from onebert_server.extensions.watching.learning import Halves, Learning, learned
from onebert_server.extensions.watching.statistics import Shift
from onebert_server.extensions.watching.windows import Live, Texts, Window
from onebert_server.observed import Seen
from onebert_store.file.manifest import Manifest
from onebert_store.file.reference import FOLDS, Reference

# Number of labels in an alarm: the labels that moved furthest.
_NAMED = 3


def reference_in(manifest: Manifest) -> Reference | None:
    """The reference of a version's file, if it counts this version's answers."""
    return None if manifest.reference is None or manifest.reference.split == FOLDS else manifest.reference


@dataclass(eq=False, slots=True)
class Watched:
    """A version that has answered.

    Attributes:
        answers: those that were counted since the start; their texts were not among the 500 before.
        repeats: the others.
        judged: the last full window beside the reference; None below 200 answers.
        alarm_since: None while there is no alarm.
    """

    labels: list[str]
    window: Window | Learning
    answers: int = 0
    repeats: int = 0
    judged: Judged | None = None
    alarm_since: datetime | None = None
    _texts: Texts = field(default_factory=Texts)

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> "Watched":
        labels, reference = manifest.labels, reference_in(manifest)
        return cls(labels, Learning(labels) if reference is None else Window(labels, reference))

    @property
    def reference(self) -> Reference | None:
        """None while it is learned."""
        return self.window.reference

    @property
    def shift(self) -> Shift | None:
        """Estimates from the window of `judged`; None without it, or with too few rows by right label."""
        reference = self.reference
        return None if self.judged is None or reference is None else shift_of(reference, self.judged.live)

    def count(self, answers: Sequence[Seen]) -> Sequence[Live | Halves]:
        """Counts answers with texts, except those that repeat one; returns what is to be judged, or learned from."""
        new = self._texts.add(answers)
        self.repeats += len(answers) - len(new)
        self.answers += len(new)
        return self.window.add(new)

    def learn(self, halves: Halves) -> None:
        """Takes the reference of two halves if they are alike, and there is none yet."""
        if self.reference is None and (reference := learned(*halves)) is not None:
            self.window = Window(self.labels, reference)

    def judge(self, live: Live, level: float) -> bool | None:
        """Judges a window; returns whether the alarm is on now if that has changed."""
        if (reference := self.reference) is None:
            return None
        self.judged = judge(reference, live)
        if self.alarm_since is None and self.judged.p < level:
            self.alarm_since = datetime.now(UTC)
            return True
        return False if self.alarm_since is not None and self.judged.p >= OVER else None

    def change(self) -> dict[str, Any]:
        """What the judged window shows: cause, labels that moved furthest, mean top scores, repeats left out."""
        reference, judged = self.reference, self.judged
        if reference is None or judged is None:
            return {}
        live = judged.live
        moved = [as_dict(share) for share in shares_of(self.labels, reference, live)[:_NAMED]]
        scores = None if judged.psi is None else mean_scores(reference, live)
        return {"cause": cause_of(self.shift), "labels": moved, "scores": scores, "repeats": self.repeats}


def mean_scores(reference: Reference, live: Live | None) -> dict[str, float | None]:
    """The mean top score of the reference and of a window."""
    return {"reference": reference.confidence, "live": live.confidence / live.answers if live is not None else None}
