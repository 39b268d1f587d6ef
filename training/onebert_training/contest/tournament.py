"""A tournament: candidates with their answers to the same rows, and the judge that keeps one of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onebert_store.errors import NotFinite
from onebert_training.fit.lead import judged
from onebert_training.fit.result import SMALLER
from onebert_training.fit.run import Run
from onebert_training.tasks.metrics import Judged
from onebert_training.tasks.objective import Measurement

Judge = Callable[[Sequence[Judged]], int]
"""Returns the place of the one to keep."""


@dataclass(eq=False)
class Candidate:
    """A way to train a task.

    Attributes:
        run: the full training.
        measured: the answers to the judging rows; None before they are measured.
        left: the reason it left the tournament; None while it takes part.
    """

    run: Run
    measured: Measurement | None = None
    left: str | None = None

    @property
    def judged(self) -> Judged:
        """The answers' score; raises ValueError before they are measured."""
        if self.measured is None:
            raise ValueError(f"{self.run.method.text} was not measured")
        return judged(self.run, self.measured)

    @property
    def score(self) -> float | None:
        return self.measured.scores[self.run.metric] if self.measured else None


@dataclass(frozen=True)
class Tournament:
    """Candidates by name, in the order in which the judge sees them."""

    candidates: Mapping[str, Candidate]
    judge: Judge

    @property
    def going(self) -> dict[str, Candidate]:
        return {name: one for name, one in self.candidates.items() if not one.left}

    def kept(self) -> str:
        """The judge's choice among the candidates that take part; raises NotFinite if all have left."""
        going = self.going
        if not going:
            raise NotFinite(f"the losses are no longer numbers; {SMALLER}")
        # The only one that is left may not be measured.
        place = self.judge([one.judged for one in going.values()]) if len(going) > 1 else 0
        return list(going)[place]
