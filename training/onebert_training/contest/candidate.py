"""Candidates with their answers to the same rows, and the choice of one; methods trained in short to compare them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TypeVar

from onebert_store.errors import NotFinite
from onebert_training.contest.few import fold_runs, measured
from onebert_training.fit.features import BATCH_TOKENS
from onebert_training.fit.keeping import judged
from onebert_training.fit.loop import groups, take_step
from onebert_training.fit.result import SMALLER
from onebert_training.fit.run import Run
from onebert_training.fit.state import State
from onebert_training.heads.seen import cross_validated
from onebert_training.tasks.metrics import Judged
from onebert_training.tasks.objective import Logits, Measurement

# With a validation split a candidate takes one in `SHARE` of its steps, at least LEAST_STEPS, by its own schedule.
SHARE, LEAST_STEPS = 4, 100


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


class InShort(Candidate):
    """A method in a comparison.

    Attributes:
        sides: the short run or the folds; empty for an exact head.
        steps: steps of the longest side.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run.method.text, run, _of_head(run) if run.plan.exact else None)
        runs = [] if run.plan.exact else _short(run)
        self.sides = [(one, State(one.init_values(), one.averaged_steps)) for one in runs]
        self.steps = max((one.steps for one, _ in self.sides), default=0)

    def measure(self) -> None:
        """Measures the current values; a candidate with answers that are not finite leaves."""
        try:
            self.measured = self._answers()
        except NotFinite:
            self.left = "its answers are no longer numbers"

    def _answers(self) -> Measurement:
        if self.run.validates:
            ((one, state),) = self.sides
            return one.evaluate(one.model(state.averaged), "validation")
        found: dict[int, Logits] = {}
        for one, state in self.sides:
            rows = one.held_out.tolist()
            found |= zip(rows, one.logits(one.model(state.averaged), "train", rows), strict=True)
        return measured(self.run, [found[row] for row in range(len(found))])

    def price(self) -> float:
        """Estimated seconds of its training, from the shorter of two steps after a first one.

        Another candidate takes these steps: a candidate's own steps in a batch with others would round otherwise.
        """
        again, seconds = InShort(self.run), []
        for _ in range(3):
            started = time.perf_counter()
            step_of([again])
            seconds.append(time.perf_counter() - started)
        return min(seconds[1:]) * self.steps


def step_of(candidates: Sequence[InShort]) -> None:
    """Makes one step of every side, in batches by entry layer; a candidate with a loss that is not finite leaves."""
    sides = {
        one: (candidate, state) for candidate in candidates for one, state in candidate.sides if state.step < one.steps
    }
    for together in groups(list(sides)):
        width = _width(together[0])
        for first in range(0, len(together), width):
            part = together[first : first + width]
            for one, loss in zip(part, take_step([(one, sides[one][1]) for one in part]), strict=True):
                if not isfinite(loss):
                    sides[one][0].left = "its loss is no longer a number"


def _short(run: Run) -> Sequence[Run]:
    if not run.validates:
        return fold_runs(run)
    steps = min(run.steps, max(LEAST_STEPS, run.steps // SHARE))
    return [Run(run.inputs, replace(run.settings, max_steps=steps), run.task)]


def _width(run: Run) -> int:
    """Runs per batch: more tokens are no faster, and their activations need memory."""
    lengths = [len(one) for one in run.inputs.splits["train"].tokens]
    return max(1, int(BATCH_TOKENS / (run.settings.batch_size * sum(lengths) / len(lengths))))


def _of_head(run: Run) -> Measurement:
    """Exact heads' answers: for validation rows from all training rows, or for held-out rows from the other folds."""
    answers = run.yardsticks.answers
    if answers is None or len(answers.logits) < len(run.data.splits["validation" if run.validates else "train"]):
        # A yardstick may have read only a part of the rows; folds are compared on all rows.
        seen = run.inputs.frozen.see("train", run.pooling)
        answers = cross_validated(run.objective, run.data.task_type, seen, run.metric)
    return answers
