"""A tournament: candidates with their answers to the same rows, and a judge that keeps one of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from onebert_store.errors import NotFinite
from onebert_training.fit.lead import judged
from onebert_training.fit.result import SMALLER
from onebert_training.fit.run import Run
from onebert_training.tasks.metrics import Judged
from onebert_training.tasks.objective import Measurement


@dataclass(eq=False)
class Candidate:
    """A way to train a task.

    Attributes:
        run: the full training.
        measured: the answers to the judging rows; None before they are measured.
        left: the reason it left the tournament; None while it takes part.
    """

    name: str
    run: Run
    measured: Measurement | None = None
    left: str | None = None

    @property
    def judged(self) -> Judged:
        """The answers' score; raises ValueError before they are measured."""
        if self.measured is None:
            raise ValueError(f"{self.name} was not measured")
        return judged(self.run, self.measured)

    @property
    def score(self) -> float | None:
        return self.measured.scores[self.run.metric] if self.measured else None


_Own = TypeVar("_Own", bound=Candidate)


def keep(candidates: Sequence[_Own], judge: Callable[[Sequence[Judged]], int]) -> _Own:
    """The judge's choice: `judge` reads the scores of all candidates that take part, and returns the place of one.

    Raises NotFinite if all have left.
    """
    going = [one for one in candidates if not one.left]
    if not going:
        raise NotFinite(f"the losses are no longer numbers; {SMALLER}")
    # The only one that is left may not be measured.
    return going[judge([one.judged for one in going])] if len(going) > 1 else going[0]
