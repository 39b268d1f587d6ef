"""The schedule of a run: its steps, learning rates, evaluations and early stop."""

from dataclasses import dataclass
from math import ceil
from typing import Self

from onebert_training.fit.settings import EPOCHS, LEAST_STEPS, Settings

WARMUP = 0.06


@dataclass(frozen=True)
class Schedule:
    """The schedule of a run that takes steps.

    Attributes:
        epochs, steps: upper limits; `patience` may stop the run before.
        eval_every: steps between evaluations, or between history entries without validation rows.
        patience: evaluations without a better metric or loss after which the run stops; 0 never stops.
    """

    steps_per_epoch: int
    epochs: int
    steps: int
    eval_every: int
    patience: int

    @classmethod
    def of(cls, settings: Settings, rows: int, validates: bool) -> Self:
        steps_per_epoch = ceil(rows / settings.batch_size)
        epochs = settings.epochs or max(EPOCHS, ceil(LEAST_STEPS / steps_per_epoch))
        steps = min(epochs * steps_per_epoch, settings.max_steps or 2**62)
        looks = EPOCHS * settings.evals_per_epoch
        if not validates:
            return cls(steps_per_epoch, epochs, steps, ceil(steps / looks), 0)
        # Few rows have more epochs than usual: evaluate as often in the whole run as with the usual number.
        usual = EPOCHS * steps_per_epoch
        planned = usual if settings.epochs else max(usual, steps)
        return cls(steps_per_epoch, epochs, steps, ceil(planned / looks), settings.patience)

    def share_at(self, step: int) -> float:
        """Share of the peak learning rate in a step: linear warm-up, then linear decay to zero."""
        warmup = max(1, ceil(WARMUP * self.steps))
        return min(1.0, (step + 1) / warmup, (self.steps - step) / max(1, self.steps - warmup))
