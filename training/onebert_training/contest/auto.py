"""`--method auto`: trains methods in short side by side, and takes the smallest that is not behind.

Validation rows judge, or folds without such rows (decision 50).
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from onebert_store.disk import write_whole
from onebert_store.errors import NotFinite
from onebert_training.contest.contest import Candidate, keep, started_checkpoint
from onebert_training.contest.few import fold_runs, fold_steps, make_run, measured
from onebert_training.fit.features import BATCH_TOKENS
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import Progress, Report, groups, ignore, take_step
from onebert_training.fit.recorded import records
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings, methods_for
from onebert_training.fit.state import State
from onebert_training.heads.exact import has_exact_head
from onebert_training.heads.seen import cross_validated
from onebert_training.tasks.metrics import best_of, near_best
from onebert_training.tasks.objective import Logits, Measurement

# With a validation split a candidate takes one in `SHARE` of its steps, at least LEAST_STEPS, by its own schedule.
SHARE, LEAST_STEPS = 4, 100
# Steps for a price: two are launched, and of a recorded run later ones are several times faster.
_PRICED, _PRICED_RECORDED = 3, 12
# Half way, a candidate leaves if it is behind by this number of standard errors: slow learners may catch up.
_CLEARLY = 2

_Named = TypeVar("_Named")


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
        """Estimated seconds of its training, from the shortest of a few steps after a first one.

        Another candidate takes these steps: a candidate's own steps in a batch with others would round otherwise.
        """
        again, seconds = InShort(self.run), []
        for _ in range(_PRICED_RECORDED if records(self.run) else _PRICED):
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


@dataclass(frozen=True)
class Comparison:
    """The methods to choose from.

    Attributes:
        runs: full runs, one per method, by trained size.
        budget: seconds that choosing may take, about; None is no limit.
    """

    runs: Sequence[Run]
    budget: float | None

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps([self.budget, *(run.fingerprint for run in self.runs)]).encode()).hexdigest()


@dataclass(frozen=True)
class Choice:
    """The chosen method.

    Attributes:
        run: trains the chosen method to its end.
        facts: the comparison, for the record and the manifest: `chosen`, `folds` (0: validation rows judged), number of
            judging `rows`, and for each of `methods` its `score`, the `lead` over the chosen one with its standard
            `error`, or the reason it `left`.
        seconds: time to choose.
    """

    run: Run
    facts: Mapping[str, Any]
    seconds: float

    @property
    def line(self) -> str:
        facts, metric = self.facts, self.run.metric
        where = f"in {facts['folds']} folds" if facts["folds"] else "on validation"
        own = facts["methods"][facts["chosen"]]
        others = [_said(name, one) for name, one in facts["methods"].items() if name != facts["chosen"]]
        score = "all that is left" if own["score"] is None else f"{metric} {own['score']:.4f} {where}"
        ahead = any((one["lead"] or 0) > 0 for one in facts["methods"].values())
        why = ", the smallest within a standard error of the best" if ahead else ""
        return f"chosen: {facts['chosen']}, {score}{why}; {', '.join(others)}"


def _said(name: str, one: Mapping[str, Any]) -> str:
    score = "" if one["score"] is None else f" {one['score']:.4f}"
    beside = one["left"] or f"{one['lead']:+.4f} ± {one['error']:.4f}"
    return f"{name}{score} ({beside})"


def choice_file(checkpoint: Path) -> Path:
    """The file of the choice, beside the checkpoint of the training that follows."""
    return checkpoint.with_name(f"{checkpoint.name}.choice")


def forget(checkpoint: Path) -> None:
    """Deletes the files from which a training resumes: its checkpoint, and those beside it."""
    for file in (checkpoint, started_checkpoint(checkpoint), choice_file(checkpoint)):
        file.unlink(missing_ok=True)


def make_comparison(inputs: TaskInputs, settings: Settings, task: str) -> Comparison:
    """The comparison for a task; `head` takes part only if the task type has an exact head. Raises as `Run`."""
    exact = has_exact_head(inputs.objective)
    methods = [name for name in methods_for(inputs.base.config.num_layers) if name != "head" or exact]
    runs = [make_run(inputs, replace(settings, method=name, time_budget=None), task) for name in methods]
    return Comparison(runs, settings.time_budget)


def choose(comparison: Comparison, report: Report = ignore, file: Path | None = None) -> Choice:
    """Compares the candidates; equal comparisons without a budget give equal choices.

    Args:
        report: called after every step, and with a note on each candidate that the budget leaves out.
        file: the choice is written there; an equal earlier choice is read from there.

    Raises:
        NotFinite: no candidate could be measured.
    """
    if file is not None and (known := _read(file, comparison)) is not None:
        report(known.run, Progress(0, known.run.steps, note=f"{known.run.method.text} was chosen before"))
        return known
    started = time.perf_counter()
    candidates = [InShort(run) for run in comparison.runs]
    if comparison.budget is not None:
        _keep_within(comparison.budget, candidates, report)
    _compare(candidates, report)
    chosen = keep(candidates, near_best)
    choice = Choice(_to_train(chosen.run), _facts(candidates, chosen), time.perf_counter() - started)
    if file is not None:
        said = {"of": comparison.fingerprint, "facts": choice.facts, "seconds": choice.seconds}
        write_whole(file, json.dumps(said).encode())
    return choice


def _to_train(run: Run) -> Run:
    """A head alone is fitted again, also on the rows that were held out to compare."""
    if run.plan.exact and run.data.whole is not None:
        return make_run(run.inputs.rejoined(), run.settings, run.task)
    return run


def _read(file: Path, comparison: Comparison) -> Choice | None:
    try:
        said = json.loads(file.read_bytes())
        if said["of"] != comparison.fingerprint:
            return None
        run = next(run for run in comparison.runs if run.method.text == said["facts"]["chosen"])
        return Choice(_to_train(run), said["facts"], said["seconds"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def _keep_within(budget: float, candidates: Sequence[InShort], report: Report) -> None:
    """Drops the dearest candidates until the rest fits; an exact head, or else the cheapest candidate, stays."""
    prices = {candidate: candidate.price() for candidate in candidates if candidate.sides}
    for candidate in dear(prices, budget, spare=len(prices) == len(candidates)):
        candidate.left = "left out for the time budget"
        note = f"{candidate.name} is left out: comparing it would take about {prices[candidate]:.0f} s"
        report(candidate.run, Progress(0, candidate.steps, note=note))


def dear(prices: Mapping[_Named, float], budget: float, spare: bool) -> list[_Named]:
    """The names to drop, the dearest first, to fit `budget`; `spare` keeps the cheapest in any case."""
    falling = sorted(prices, key=lambda one: prices[one], reverse=True)
    gone: list[_Named] = []
    for one in falling[: len(falling) - spare]:
        if sum(prices.values()) - sum(prices[other] for other in gone) <= budget:
            break
        gone.append(one)
    return gone


def _compare(candidates: Sequence[InShort], report: Report) -> None:
    if sum(not candidate.left for candidate in candidates) < 2:
        return
    steps = max(candidate.steps for candidate in candidates)
    for step in range(1, steps + 1):
        active = [candidate for candidate in candidates if candidate.sides and not candidate.left]
        if not active:
            return
        step_of(active)
        report(candidates[-1].run, Progress(step, steps))
        if step in (steps // 2, steps):
            going = [candidate for candidate in active if not candidate.left]
            for candidate in going:
                candidate.measure()
            if step < steps:
                _leave([candidate for candidate in going if not candidate.left], step)


def _leave(candidates: Sequence[InShort], step: int) -> None:
    if not candidates:
        return
    measured = [candidate.judged for candidate in candidates]
    best = best_of(measured)
    for candidate, one in zip(candidates, measured, strict=True):
        lead, error = best.lead_over(one)
        if lead > _CLEARLY * error:
            candidate.left = f"behind at step {step}"


def _facts(candidates: Sequence[InShort], chosen: InShort) -> dict[str, Any]:
    run, methods = chosen.run, {}
    for one in candidates:
        lead, error = one.judged.lead_over(chosen.judged) if chosen.measured and not one.left else (None, None)
        methods[one.name] = {"score": one.score, "lead": lead, "error": error, "left": one.left}
    split, folds = ("validation", 0) if run.validates else ("train", len(fold_steps(run)))
    return {"chosen": chosen.name, "folds": folds, "rows": len(run.data.splits[split]), "methods": methods}
