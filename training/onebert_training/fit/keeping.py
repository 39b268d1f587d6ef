"""Keeps the values of a run's last evaluation, or of its best one if that is clearly ahead."""

from typing import Any

from onebert_store.errors import NotFinite
from onebert_training.fit.lead import judged
from onebert_training.fit.result import SMALLER
from onebert_training.fit.run import Run
from onebert_training.fit.state import State
from onebert_training.tasks.metrics import is_better, is_preferred
from onebert_training.tasks.objective import Measurement, Verdict


def validate(run: Run, state: State) -> dict[str, float]:
    """Evaluates on the validation split, and keeps the values if they are the best so far; the loss breaks ties.

    The last step's values replace the best ones unless these lead by more than a standard error: the best of many
    evaluations owes most of a small lead to luck, and the values have settled at the end of the schedule
    (decision 53). Raises NotFinite if a logit is NaN or infinite.
    """
    try:
        measured = run.evaluate(run.model(state.averaged), "validation")
    except NotFinite:
        raise NotFinite(f"the answers are no longer numbers at step {state.step}; {SMALLER}") from None
    scores, loss = measured.scores, measured.loss
    score, best = scores[run.metric], state.validation.get(run.metric)
    # A falling loss counts as progress as well: the metric often stays at the commonest label's score early on.
    state.stale = 0 if is_better(run.metric, score, best) or loss < state.lowest_loss else state.stale + 1
    state.lowest_loss = min(loss, state.lowest_loss)
    if is_preferred(run.metric, score, loss, best, state.kept_loss) or _settles(run, state, measured):
        state.keep(loss, scores, run.judge(measured), measured)
    _write_down(run, state, validation=scores, validation_loss=loss)
    return scores


def _settles(run: Run, state: State, measured: Measurement) -> bool:
    """Whether `measured` is of the last step, and the best evaluation not clearly ahead of it."""
    if state.step < run.steps or run.settings.keep == "best":
        return False
    return not judged(run, kept_measurement(run, state)).is_ahead_of(judged(run, measured))


def kept_measurement(run: Run, state: State) -> Measurement:
    """The kept values' measurement on the validation split; a resumed run measures again, as no checkpoint has it."""
    return state.measured or run.evaluate(run.model(state.kept), "validation")


def keep_unvalidated(run: Run, state: State) -> None:
    """Keeps the values of a run without a validation split: its last step counts."""
    state.keep(state.losses[0] / state.losses[1], {}, Verdict())
    _write_down(run, state)


def _write_down(run: Run, state: State, **scores: Any) -> None:
    total, count = state.losses
    epoch = round(state.step / run.schedule.steps_per_epoch, 4)
    state.history.append({"step": state.step, "epoch": epoch, "loss": total / count, **scores})
    state.losses = [0.0, 0.0]
