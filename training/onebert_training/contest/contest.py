"""The contest of `onebert train`: a fresh head, one that starts exact, and the exact head alone; validation decides.

The two runs share every pass of the frozen weights for a tenth of the steps, then one goes on alone
(docs/decisions/0045-contest.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import Any

from onebert_training.contest.contrastive import ContrastiveRun
from onebert_training.contest.few import train_judged
from onebert_training.fit.lead import lead_of
from onebert_training.fit.loop import Active, Progress, Report, advance, ignore
from onebert_training.fit.result import Result, finish
from onebert_training.fit.run import Measurement, Run
from onebert_training.fit.state import State
from onebert_training.heads.exact import ExactHead

SHARE = 10  # the two runs are beside each other for this part of the planned steps

_WORDS = {"fresh": "trained from a fresh head", "head": "trained from the exact head", "alone": "the exact head alone"}


@dataclass(frozen=True)
class Kept:
    """What a training keeps.

    Attributes:
        run: the run that the result is of: the one that was asked for, the same from an exact head, or that head alone.
        result: its result.
        facts: what was compared, for the record; None where nothing was.
    """

    run: Run
    result: Result
    facts: Mapping[str, Any] | None = None

    @property
    def line(self) -> str | None:
        """One line for the user: what is kept, and the scores that decided."""
        if self.facts is None:
            return None
        metric, scores = self.result.metric, self.facts["validation"]
        beside = ", ".join(
            f"{_WORDS[name]} {score:.4f}" for name, score in scores.items() if name != self.facts["kept"]
        )
        kept, folds = self.facts["kept"], self.result.folds
        where = f"in {folds} folds" if folds else "on validation"
        return f"kept: {_WORDS[kept]}, {metric} {scores[kept]:.4f} {where}; {beside}"


def started_checkpoint(path: Path) -> Path:
    """The checkpoint file of the run that starts from the exact head."""
    return path.with_name(f"{path.name}.head")


def train_kept(run: Run, report: Report = ignore, checkpoint_file: Path | None = None) -> Kept:
    """Trains what the user asked for, and keeps what validation prefers; an interrupted training continues.

    Args:
        run: the run; with a `start` of its own, or where no exact head can stand beside it, it is trained alone.
        report: called with the progress of the run; where the other one leads, from then on with that one's.
        checkpoint_file: of the run; that of the run from the exact head stands beside it.

    Raises:
        NotFinite: the loss is no longer a number.
    """
    compares = not (run.settings.start or run.plan.exact) and run.plan.servable
    head = run.yardsticks.head if compares else None
    if head is None:
        return Kept(run, train_judged(run, report, checkpoint_file))
    if not run.validates:
        return _preferred_by_folds(run, report, checkpoint_file)
    trained, lasted = _train_side_by_side(run, report, checkpoint_file)
    candidates = {name: one for name, one in trained.items() if one.state.kept} | {"alone": _alone(run, head)}
    kept = _preferred(candidates, lasted)
    winner = candidates[kept]
    report(winner.run, Progress(winner.state.step, run.steps, testing=True))
    others = sum(one.state.seconds for one in trained.values() if one is not winner)
    result = finish(winner.run, winner.state, winner.resumed_at)
    result = replace(result, seconds=result.seconds + others)
    scores = {name: one.state.validation[run.metric] for name, one in candidates.items()}
    steps = {name: one.state.step for name, one in trained.items()}
    return Kept(winner.run, result, {"kept": kept, "validation": scores, "steps": steps})


def _preferred_by_folds(run: Run, report: Report, checkpoint_file: Path | None) -> Kept:
    """Trains a run of few rows; the exact head alone is kept where it leads by more than the lead's standard error."""
    trained, answers = train_judged(run, report, checkpoint_file), run.yardsticks.answers
    if answers is None or len(answers.logits) != len(trained.held_out):  # of very many words a yardstick reads some
        return Kept(run, trained)
    by_head, by_run = (Measurement("train", {}, nan, logits) for logits in (answers.logits, trained.held_out))
    lead, error = lead_of(run, by_head, by_run)
    name = "head" if isinstance(run, ContrastiveRun) else "fresh"
    scores = {name: trained.validation[run.metric], "alone": answers.scores[run.metric]}
    facts = {"kept": "alone" if lead > error else name, "validation": scores, "steps": {name: trained.steps}}
    if lead <= error:
        return Kept(run, trained, facts)
    alone = Run(run.inputs, replace(run.settings, method="head"), run.task)
    result = train_judged(alone)
    return Kept(alone, replace(result, seconds=result.seconds + trained.seconds), facts)


def _train_side_by_side(run: Run, report: Report, checkpoint_file: Path | None) -> tuple[dict[str, Active], str]:
    """Trains both runs for a tenth of the steps and the better one to its end; a run of few steps is trained alone.

    Returns:
        The runs by where their heads start, and the name of the one that lasted.
    """
    look = run.steps // SHARE if run.plan.shares_base else 0
    runs = {"fresh": run}
    if look:
        runs["head"] = Run(run.inputs, replace(run.settings, start="head"), run.task)
    active = _resumed(runs, look, report, checkpoint_file)
    # Patience waits for the look: a head that starts exact may be at its best before the fresh one has begun to learn.
    while waiting := [one for one in active.values() if one.error is None and one.state.step < look]:
        _advance(waiting, report)
    leader = _leader(active, look)
    if leader.run is not run and leader.state.step == look:
        # Its patience begins here: a head that starts exact has its lowest loss early, and its best score may be later.
        leader.state.stale, leader.state.lowest_loss = 0, inf
        report(leader.run, Progress(look, run.steps, note="the run that starts from the exact head goes on alone"))
    while not leader.is_done:
        _advance([leader], report)
    if leader.error is not None:
        raise leader.error
    return active, next(name for name, one in active.items() if one is leader)


def _resumed(runs: Mapping[str, Run], look: int, report: Report, checkpoint_file: Path | None) -> dict[str, Active]:
    """Both runs where their checkpoints stand, if these are of one moment; else at their start."""
    files = {"fresh": checkpoint_file, "head": checkpoint_file and started_checkpoint(checkpoint_file)}

    def started(resume: bool) -> dict[str, Active]:
        return {
            name: Active.start(one, ignore, files[name] if resume else None, look=look) for name, one in runs.items()
        }

    there = any(file is not None and file.exists() for file in files.values())
    active = started(resume=there)
    steps = [one.state.step for one in active.values()]
    if there:
        whole = min(steps) > 0 and (max(steps) == min(steps) or min(steps) == look)
        if not whole:
            active = started(resume=False)
        note = f"continued at step {max(steps)}" if whole else "started anew: the checkpoint is not of this run"
        report(runs["fresh"], Progress(max(steps) if whole else 0, runs["fresh"].steps, note=note))
    for name, one in active.items():
        one.checkpoint_file = files[name]
    return active


def _advance(active: Sequence[Active], report: Report) -> None:
    """One step of each; the first's progress is reported, when the checkpoints of all are written."""
    reported: list[tuple[Run, Progress]] = []
    advance(active, lambda run, progress: reported.append((run, progress)))
    for run, progress in reported:
        if run is active[0].run:
            report(run, progress)


def _leader(active: Mapping[str, Active], look: int) -> Active:
    """The run that goes on alone: the fresh one, unless the other is clearly ahead at the look."""
    fresh, started = active["fresh"], active.get("head")
    if started is None or started.error is not None or fresh.state.step > look:
        return fresh
    if fresh.error is not None or started.state.step > look:
        return started
    one, other = (run.run.evaluate(run.state.averaged, "validation") for run in (started, fresh))
    lead, error = lead_of(fresh.run, one, other)
    return started if lead > error else fresh


def _alone(run: Run, head: ExactHead) -> Active:
    """The exact head as a run that is done."""
    alone = Run(run.inputs, replace(run.settings, method="head"), run.task)
    state = State(alone.with_head(alone.init_values(), head))
    measured = alone.evaluate(state.averaged, "validation")
    state.keep(measured.loss, measured.scores, alone.judge(measured))
    return Active(alone, state, None)


def _preferred(candidates: Mapping[str, Active], lasted: str) -> str:
    """The name of the run that lasted, or of what is ahead of it on validation by more than a standard error.

    What was trained for a tenth of the steps, and a head whose strength these rows have chosen, are ahead by luck as
    easily as an early evaluation is (docs/decisions/0053-keeping-the-last.md).
    """
    answers = {name: one.run.evaluate(one.state.kept, "validation") for name, one in candidates.items()}
    leads = {name: lead_of(candidates[lasted].run, one, answers[lasted]) for name, one in answers.items()}
    ahead = [name for name, (lead, error) in leads.items() if lead > error]
    return max(ahead, key=lambda name: leads[name][0], default=lasted)
