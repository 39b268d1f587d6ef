"""Keeps the values of a run's last evaluation, or of its best one if that is clearly ahead; measures leads."""

from math import nan
from typing import Any, Literal

import numpy as np

from onebert_store.errors import NotFinite
from onebert_training.data.splitting import SPLIT_SEED
from onebert_training.fit.result import SMALLER
from onebert_training.fit.run import Run
from onebert_training.fit.state import State
from onebert_training.heads.baselines import Answers, Baselines
from onebert_training.tasks.metrics import JackknifeScore, is_better, is_preferred
from onebert_training.tasks.objective import Measurement, Verdict

_BLOCKS = 20


def jackknife_score(run: Run, measured: Measurement) -> JackknifeScore:
    """The deciding metric of a measurement, on all examples and without each of up to twenty blocks of them."""
    examples, tokens = run.rows_of(measured.split)
    answers = run.objective.read(examples, tokens, measured.logits)

    def score(rows: np.ndarray) -> float:
        return run.objective.score(examples.take(rows), [answers[i] for i in rows])[run.metric]

    order = np.random.default_rng(SPLIT_SEED).permutation(len(examples))
    blocks = min(_BLOCKS, len(examples))
    place = np.arange(len(order)) * blocks // len(order)
    left_out = tuple(score(order[place != block]) for block in range(blocks)) if blocks > 1 else ()
    return JackknifeScore(run.metric, score(order), left_out)


def comparable_head(measured: Measurement, answers: Answers | None) -> Answers | None:
    """The exact head's answers to the rows of a measurement; None without a head, or if it has not read all rows."""
    # A baseline reads only a part of very many words.
    return answers if answers and len(answers.logits) == len(measured.logits) else None


def unbeaten(
    run: Run, measured: Measurement, result: JackknifeScore, baselines: Baselines
) -> Literal["constant", "head"] | None:
    """The baseline against a result, on the same rows: a constant it is not ahead of, or an exact head ahead of it."""
    examples, tokens = run.rows_of(measured.split)
    if (best := run.objective.best_constant(examples, tokens, run.metric)) is not None:
        always = run.objective.always(best[0], tokens, len(examples))
        constant = jackknife_score(run, Measurement(measured.split, best[1], nan, always))
        if not result.is_ahead_of(constant):
            return "constant"
    head = None if run.plan.exact else comparable_head(measured, baselines.answers)
    return "head" if head and jackknife_score(run, head).is_ahead_of(result) else None


def validate(run: Run, state: State) -> dict[str, float]:
    """Evaluates on the validation split, and keeps the values if they are the best so far; the loss breaks ties.

    The last step's values replace the best ones unless these lead by more than a standard error: the best of many
    evaluations owes most of a small lead to luck, and the values have settled at the end of the schedule.
    Raises NotFinite if a logit is NaN or infinite.
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
    return not jackknife_score(run, kept_measurement(run, state)).is_ahead_of(jackknife_score(run, measured))


def kept_measurement(run: Run, state: State) -> Measurement:
    """The kept values' measurement on the validation split; a resumed run measures again, as no checkpoint has it."""
    return state.measured or run.evaluate(run.model(state.kept_values), "validation")


def keep_unvalidated(run: Run, state: State) -> None:
    """Keeps the values of a run without a validation split: its last step counts."""
    state.keep(state.losses[0] / state.losses[1], {}, Verdict())
    _write_down(run, state)


def _write_down(run: Run, state: State, **scores: Any) -> None:
    total, count = state.losses
    epoch = round(state.step / run.schedule.steps_per_epoch, 4)
    state.history.append({"step": state.step, "epoch": epoch, "loss": total / count, **scores})
    state.losses = [0.0, 0.0]
