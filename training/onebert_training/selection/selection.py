"""Model selection of `onebert train`: a fresh head, a short run from the exact head, that head alone (decision 45)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onebert_store.errors import NotFinite
from onebert_training.fit import checkpoint
from onebert_training.fit.keeping import comparable_head, jackknife_score, kept_measurement
from onebert_training.fit.loop import Active, Progress, Report, advance, ignore
from onebert_training.fit.result import Result, finish
from onebert_training.fit.run import Run
from onebert_training.fit.state import State
from onebert_training.heads.baselines import Baselines
from onebert_training.heads.exact import ExactHead
from onebert_training.selection.contrastive import ContrastiveRun
from onebert_training.selection.few import train_judged
from onebert_training.tasks.metrics import clear_winner, is_better
from onebert_training.tasks.objective import Measurement

SHARE = 10  # the run from the exact head has one in ten of the planned steps

_WORDS = {
    "fresh": "trained from a fresh head",
    "head": "trained from the exact head for {steps}",
    "alone": "the exact head alone",
}


@dataclass(frozen=True)
class Selection:
    """The kept result of a training, with its run; `facts` record the comparison, None without one."""

    run: Run
    result: Result
    facts: Mapping[str, Any] | None = None

    @property
    def line(self) -> str | None:
        if self.facts is None:
            return None
        metric, scores = self.result.metric, self.facts["validation"]
        steps = {name: f"{number:,} step{'s' * (number != 1)}" for name, number in self.facts["steps"].items()}
        words = {name: _WORDS[name].format(steps=steps.get(name)) for name in scores}
        winner, folds = self.facts["kept"], self.result.folds
        rest = ", ".join(f"{words[name]} {score:.4f}" for name, score in scores.items() if name != winner)
        where = f"in {folds} folds" if folds else "on validation"
        if any(is_better(metric, score, scores[winner]) for score in scores.values()):
            rest += " (a lead within its standard error does not count)"
        ended = self.facts.get("ended")
        left_out = f"; the run from the exact head is left out: {ended}" if ended else ""
        return f"kept: {words[winner]}, {metric} {scores[winner]:.4f} {where}; {rest}{left_out}"


class _FromHead(Run):
    """Starts at the head that another run is compared with; its own few steps would give a head on fewer rows."""

    def __init__(self, other: Run, steps: int) -> None:
        super().__init__(other.inputs, replace(other.settings, start="head", max_steps=steps), other.task)
        self._other = other

    @property
    def baselines(self) -> Baselines:
        return self._other.baselines


def started_checkpoint(path: Path) -> Path:
    """The checkpoint file of the run that starts from the exact head."""
    return path.with_name(f"{path.name}.head")


def forget(checkpoint_file: Path) -> None:
    """Deletes the files from which a training resumes: its checkpoint, and the one beside it."""
    for file in (checkpoint_file, started_checkpoint(checkpoint_file)):
        file.unlink(missing_ok=True)


def train_and_select(run: Run, report: Report = ignore, checkpoint_file: Path | None = None) -> Selection:
    """Trains the requested run, and keeps the result that validation prefers; an interrupted training continues.

    Args:
        run: trained alone if it has a `start` of its own, or if no exact head can compete.
        checkpoint_file: of the run; the run from the exact head has its own beside it.

    Raises:
        NotFinite: the loss is no longer a number.
    """
    head = _competing_head(run)
    if head is None:
        return Selection(run, train_judged(run, report, checkpoint_file))
    if not run.validates:
        return _preferred_by_folds(run, report, checkpoint_file)
    trained = _train_beside(run, report, checkpoint_file)
    active = trained | {"alone": _alone(run, head)}
    # Only the run from the exact head can have ended: an error of the fresh run is raised.
    ended = next((candidate.error.detail for candidate in active.values() if candidate.error), None)
    measured = {
        name: kept_measurement(candidate.run, candidate.state)
        for name, candidate in active.items()
        if not candidate.error
    }
    facts = _facts(run, measured, {name: candidate.state.step for name, candidate in trained.items()})
    winner = active[facts["kept"]]
    report(winner.run, Progress(winner.state.step, run.steps, testing=True))
    losers_seconds = sum(candidate.state.seconds for candidate in trained.values() if candidate is not winner)
    result = finish(winner.run, winner.state, winner.resumed_at)
    timed = replace(result, seconds=result.seconds + losers_seconds)
    return Selection(winner.run, timed, {**facts, **({"ended": ended} if ended else {})})


def _facts(run: Run, measured: Mapping[str, Measurement], steps: Mapping[str, int]) -> dict[str, Any]:
    """The comparison for the record: a candidate replaces the first if it is ahead of it."""
    # A short run, and a head whose strength these rows have chosen, lead by luck as easily as an early evaluation.
    winner = [*measured][clear_winner([jackknife_score(run, measurement) for measurement in measured.values()])]
    scores = {name: measurement.scores[run.metric] for name, measurement in measured.items()}
    return {"kept": winner, "validation": scores, "steps": steps}


def _competing_head(run: Run) -> ExactHead | None:
    """The exact head that may replace a run's result; None if a start is named, or no such head can be kept."""
    compares = not (run.settings.start or run.plan.exact) and run.plan.servable
    return run.baselines.head if compares else None


def short_steps(run: Run) -> int:
    """Steps of the run from the exact head, which `train_and_select` takes beside the first steps of a run."""
    return run.steps // SHARE if run.validates and _competing_head(run) is not None else 0


def _preferred_by_folds(run: Run, report: Report, checkpoint_file: Path | None) -> Selection:
    """Trains a run without validation rows; keeps the exact head alone if its lead exceeds the standard error."""
    trained, answers = train_judged(run, report, checkpoint_file), run.baselines.answers
    if trained.measured is None or (head := comparable_head(trained.measured, answers)) is None:
        return Selection(run, trained)
    name = "head" if isinstance(run, ContrastiveRun) else "fresh"
    facts = _facts(run, {name: trained.measured, "alone": head}, {name: trained.steps})
    if facts["kept"] != "alone":
        return Selection(run, trained, facts)
    alone = Run(run.inputs, replace(run.settings, method="head"), run.task)
    # The head was found before the training began, as in a selection on validation rows.
    return Selection(alone, replace(train_judged(alone), seconds=trained.seconds), facts)


def _train_beside(run: Run, report: Report, checkpoint_file: Path | None) -> dict[str, Active]:
    runs, short = {"fresh": run}, short_steps(run)
    if short:
        runs["head"] = _FromHead(run, short)
    active = _resumed(runs, short, report, checkpoint_file)
    while waiting := [training for training in active.values() if not training.is_done]:
        _advance(waiting, run, report)
    if (error := active["fresh"].error) is not None:
        raise error
    return active


def _resumed(runs: Mapping[str, Run], short: int, report: Report, checkpoint_file: Path | None) -> dict[str, Active]:
    files = {"fresh": checkpoint_file, "head": checkpoint_file and started_checkpoint(checkpoint_file)}
    # The fresh run is evaluated, and so writes a checkpoint, when the other run ends.
    active = {name: _started(candidate, files[name], short) for name, candidate in runs.items()}
    if any(file is not None and file.exists() for file in files.values()):
        fresh, other = active["fresh"], active.get("head", active["fresh"])
        # A finished run has taken its steps beside the other run if that has taken at least the same number.
        ended = other.is_done and other.state.step <= fresh.state.step
        consistent = other.state.step > 0 and (ended or other.state.step == fresh.state.step)
        if not consistent:
            active = {name: _started(candidate, None, short) for name, candidate in runs.items()}
            for name, training in active.items():
                training.checkpoint_file = files[name]
        step = fresh.state.step if consistent else 0
        note = f"continued at step {step}" if consistent else "started anew: the checkpoint is not of this run"
        report(runs["fresh"], Progress(step, runs["fresh"].steps, note=note))
    return active


def _started(run: Run, file: Path | None, extra_step: int) -> Active:
    active = Active.start(run, ignore, file, extra_step=extra_step)
    saved = None if file is None else checkpoint.load(file)
    if saved is not None and saved[1].get("fingerprint") == run.fingerprint and "ended" in saved[1]:
        active.state.step, active.error = saved[1]["step"], NotFinite(saved[1]["ended"])
    return active


def _advance(active: Sequence[Active], run: Run, report: Report) -> None:
    """One step of each; reports `run`'s progress after the checkpoints of all are written."""
    reported: list[Progress] = []
    advance(active, lambda training, progress: reported.append(progress) if training is run else None)
    for training in active:
        if training.run is not run and training.error is not None and training.checkpoint_file is not None:
            # Replaces a checkpoint: a resumed training leaves this run out as well.
            facts = {
                "fingerprint": training.run.fingerprint,
                "step": training.state.step,
                "ended": training.error.detail,
            }
            checkpoint.save(training.checkpoint_file, {}, facts)
    for progress in reported:
        report(run, progress)


def _alone(run: Run, head: ExactHead) -> Active:
    alone = Run(run.inputs, replace(run.settings, method="head"), run.task)
    state = State(alone.with_head(alone.init_values(), head))
    state.strength = head.strength
    measured = alone.evaluate(alone.model(state.averaged), "validation")
    state.keep(measured.loss, measured.scores, alone.judge(measured), measured)
    return Active(alone, state, None)
