"""A user's settings of one training run, and the schedule that they give. No torch, so that help is quick."""

from dataclasses import dataclass
from math import ceil, inf
from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import Doc

from onebert_store.errors import InvalidSettings
from onebert_store.file.decision import CutRule
from onebert_store.file.manifest import Pooling
from onebert_training.methods.grammar import HEAD
from onebert_training.options import METHOD, OUTPUT, RECIPES, STEPS, annotated_fields, flag_of

MAX_SEED = 2**31 - 1
# Raise this when equal settings train something else: old checkpoints are not resumed, and reports do not mix.
# 2: every number moves by its own gradient (decision 56).
# 3: exact heads are near their minimum (decision 45).
# 4: few rows take no more steps than others (decision 44).
# 5: default rates of wide bases take the lower digit.
# 6: fewest rows take fewer steps from the exact head, and their folds fewer still (decision 44).
REVISION = 6
DEFAULT_METHOD = "bitfit+gamma+svd"  # decision 55
# Default number of epochs; few rows get more epochs, up to LEAST_STEPS steps
# (decision 44). A warm run gets FEW_EPOCHS epochs within FEW_STEPS and LEAST_STEPS steps.
EPOCHS, LEAST_STEPS = 4, 100
FEW_EPOCHS, FEW_STEPS = 32, 50
AVERAGING = 0.03
WARMUP = 0.06


@dataclass(frozen=True)
class Settings:
    """The settings of one training run; values that no run can have raise InvalidSettings."""

    method: Annotated[str, Doc("What is trained beside the head; `onebert methods` lists them."), METHOD] = (
        DEFAULT_METHOD
    )
    pooling: Annotated[
        Pooling | None,
        Doc(
            "What the head reads: the first token (cls), the mean of all, the base's pooler, both texts of a pair on "
            "their own (siamese); else mean."
        ),
        METHOD,
    ] = None
    positive: Annotated[
        str | None,
        Doc("Label that counts as positive, or a,b,c: several; guardrails ask for their risk. None is guessed."),
        METHOD,
    ] = None
    class_weight: Annotated[
        Literal["balanced"] | None,
        Doc("How much a row counts by its label; balanced: all labels alike, however rare; else all rows alike."),
        METHOD,
    ] = None
    max_length: Annotated[int, Ge(3), Doc("Longest input in tokens; the rest is cut off."), METHOD] = 128
    cut: Annotated[
        CutRule,
        Doc(
            "Part of a longer input that is read: head, its beginning; ends, half of the tokens from each end; "
            "abstain, its beginning, and the answer abstains."
        ),
        METHOD,
    ] = "head"
    epochs: Annotated[
        int | None, Ge(1), Doc("Passes over the training rows, at most; else 4, and more over few rows."), STEPS
    ] = None
    max_steps: Annotated[int | None, Ge(1), Doc("Optimizer steps, at most."), STEPS] = None
    batch_size: Annotated[int, Ge(1), Doc("Training rows per step."), STEPS] = 16
    learning_rate: Annotated[
        float | None,
        Gt(0),
        Doc("Peak of the schedule for what the method trains; else its own, which falls with the width of the base."),
        STEPS,
    ] = None
    head_learning_rate: Annotated[
        Annotated[float, Gt(0)] | Literal["same"] | None,
        Doc(
            "Peak for the classifier head, which starts from nothing; else its own, at least that one; same: that one."
        ),
        STEPS,
        RECIPES,
    ] = None
    averaging: Annotated[
        float,
        Ge(0),
        Lt(1),
        Doc("Evaluate and keep the mean of the values over about this share of the steps; 0 takes each as it is."),
        STEPS,
        RECIPES,
    ] = AVERAGING
    start: Annotated[
        Literal["fresh", "head"] | None,
        Doc("Where the head starts: at nothing, or at the exact head; else train tries both, a sweep starts fresh."),
        STEPS,
        RECIPES,
    ] = None
    seed: Annotated[int, Ge(0), Le(MAX_SEED), Doc("An equal seed repeats a run, to the byte on a CPU."), STEPS] = 0
    evals_per_epoch: Annotated[
        int,
        Ge(1),
        Doc("Evaluations on the validation split per epoch; of few rows as many as four epochs have."),
        STEPS,
        RECIPES,
    ] = 1
    patience: Annotated[
        int, Ge(0), Doc("Stop after so many evaluations without a better metric or loss; 0 never stops."), STEPS
    ] = 0
    keep: Annotated[
        Literal["last", "best"],
        Doc("last: the last evaluation, unless an earlier one is really better; best: the best on validation."),
        STEPS,
        RECIPES,
    ] = "last"
    metric: Annotated[
        str | None,
        Doc("Metric that decides which evaluation is kept, such as accuracy, macro_f1, matthews, micro_f1, pearson."),
        STEPS,
    ] = None
    measure_train: Annotated[bool, Doc("Measure the result on the training rows, too."), STEPS, RECIPES] = False
    no_fingerprint: Annotated[
        bool, Doc("Write no fingerprint of the training texts, by which a holder of the file can test a text."), OUTPUT
    ] = False

    def __post_init__(self) -> None:
        for name, rate in (("--learning-rate", self.learning_rate), ("head_learning_rate", self.head_learning_rate)):
            if isinstance(rate, float | int) and not 0 < rate < inf:
                raise InvalidSettings(f"{name} is a number above 0")
        if not 0 <= self.averaging < 1:
            raise InvalidSettings("averaging is a share of the steps, at least 0 and below 1")


# Settings of steps that an exact head uses as well: the metric chooses its strength, the seed names the run.
_OF_EVERY_METHOD = ("seed", "metric", "measure_train")
OF_STEPS = {
    field.name: field.name if RECIPES in annotated else flag_of(field)
    for field, _, annotated in annotated_fields(Settings)
    if STEPS in annotated and field.name not in _OF_EVERY_METHOD
}
"""Settings of steps, unused by an exact head -> their options, or their keys in recipes."""


def refuse_steps(settings: Settings) -> None:
    """Refuses settings of steps for an exact head, which takes none, with InvalidSettings."""
    usual = Settings()
    if settings.method == HEAD and (
        flags := [flag for name, flag in OF_STEPS.items() if getattr(settings, name) != getattr(usual, name)]
    ):
        raise InvalidSettings(f"--method {HEAD} is found exactly, without a step: leave out {', '.join(flags)}")


@dataclass(frozen=True)
class Schedule:
    """Upper limits `epochs`, `steps`; steps between evaluations `eval_every`; `patience` in evaluations (0: never)."""

    steps_per_epoch: int
    epochs: int
    steps: int
    eval_every: int
    patience: int

    @classmethod
    def for_run(cls, settings: Settings, rows: int, validates: bool, warm: bool) -> Self:
        """The schedule of a run on so many rows; `warm`: from the exact head and by contrast (`Run.warm`)."""
        steps_per_epoch = ceil(rows / settings.batch_size)
        least = min(LEAST_STEPS, max(FEW_STEPS, FEW_EPOCHS * steps_per_epoch)) if warm else LEAST_STEPS
        epochs = settings.epochs or max(EPOCHS, ceil(least / steps_per_epoch))
        steps = min(epochs * steps_per_epoch, settings.max_steps or 2**62)
        evaluations = EPOCHS * settings.evals_per_epoch
        if not validates:
            return cls(steps_per_epoch, epochs, steps, ceil(steps / evaluations), 0)
        # Few rows have more epochs than usual: evaluate as often in the whole run as with the usual number.
        usual = EPOCHS * steps_per_epoch
        planned = usual if settings.epochs else max(usual, steps)
        return cls(steps_per_epoch, epochs, steps, ceil(planned / evaluations), settings.patience)

    def share_at(self, step: int) -> float:
        """Share of the peak learning rate in a step: linear warm-up, then linear decay to zero."""
        warmup = max(1, ceil(WARMUP * self.steps))
        return min(1.0, (step + 1) / warmup, (self.steps - step) / max(1, self.steps - warmup))
