"""When a run takes its steps and at which share of its learning rates, when it is evaluated, and when it stops."""

from dataclasses import dataclass
from math import ceil
from typing import Self

from onebert_training.fit.settings import EPOCHS, LEAST_STEPS, Settings

WARMUP = 0.06


@dataclass(frozen=True)
class Schedule:
    """The steps of a run that takes any.

    Attributes:
        steps_per_epoch: those that read every training row once.
        epochs: passes over the training rows, at most.
        steps: at most.
        eval_every: after how many steps it is evaluated, or without validation rows its loss is written down.
        patience: evaluations without a better metric or loss after which it stops; 0 never stops.
    """

    steps_per_epoch: int
    epochs: int
    steps: int
    eval_every: int
    patience: int

    @classmethod
    def of(cls, settings: Settings, rows: int, validates: bool) -> Self:
        """The schedule that a user's settings give.

        Args:
            settings: the user's settings.
            rows: training rows.
            validates: whether there are validation rows.
        """
        steps_per_epoch = ceil(rows / settings.batch_size)
        epochs = settings.epochs or max(EPOCHS, ceil(LEAST_STEPS / steps_per_epoch))
        steps = min(epochs * steps_per_epoch, settings.max_steps or 2**62)
        looks = EPOCHS * settings.evals_per_epoch
        if not validates:
            return cls(steps_per_epoch, epochs, steps, ceil(steps / looks), 0)
        # Where few rows have more epochs than usual, these are evaluated as often as the usual ones would be.
        usual = EPOCHS * steps_per_epoch
        planned = usual if settings.epochs else max(usual, steps)
        return cls(steps_per_epoch, epochs, steps, ceil(planned / looks), settings.patience)

    def share_at(self, step: int) -> float:
        """The share of its peak that a learning rate has in a step: linear warm-up, then linear decay to zero."""
        warmup = max(1, ceil(WARMUP * self.steps))
        return min(1.0, (step + 1) / warmup, (self.steps - step) / max(1, self.steps - warmup))
