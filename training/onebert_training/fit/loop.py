"""The training loop: many runs step together through one forward and one backward pass of the frozen weights.

The loss uses the same `fold` and `encode` as serving. Each run has its own data order, dropout, optimizer, schedule and
early stop, so its result does not depend on the other runs, up to rounding.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from onebert_encoder.layout.dropout import Dropout
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.maths.sequences import Sequences
from onebert_store.errors import NotFinite, OneBertError
from onebert_training.fit.features import joined
from onebert_training.fit.keeping import keep_unvalidated, validate
from onebert_training.fit.result import SMALLER, Result, finish
from onebert_training.fit.run import Run
from onebert_training.fit.state import State


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        loss: mean since the last evaluation; None before the first step.
        validation: metrics, set right after an evaluation, when its checkpoint is on the disk.
        best: the deciding metric of the evaluation that is kept so far.
        testing: all steps are done; the test split is being measured.
        folds: number of folds that the steps are averaged over; 0 for the run itself.
    """

    step: int
    steps: int
    loss: float | None = None
    validation: Mapping[str, float] | None = None
    best: float | None = None
    tokens_per_second: float = 0.0
    note: str | None = None
    testing: bool = False
    folds: int = 0


Report = Callable[[Run, Progress], None]


def ignore(run: Run, progress: Progress) -> None:
    """A `Report` that does nothing."""


def train(run: Run, report: Report = ignore, checkpoint_file: Path | None = None) -> Result:
    """Trains one run; equal runs on one machine with the same number of threads give the same bytes.

    On CUDA equal runs may differ in the last digits, because sums there have no fixed order.

    Args:
        report: called after every step, before the test split, and at the start if a checkpoint exists.
        checkpoint_file: written at every evaluation; an equal run continues from it.

    Raises:
        NotFinite: the loss is no longer a number.
    """
    ((_, result),) = train_together([run], 1, report, lambda _: checkpoint_file)
    if isinstance(result, OneBertError):
        raise result
    return result


def train_together(
    runs: Sequence[Run], width: int, report: Report, checkpoint_of: Callable[[Run], Path | None]
) -> Iterator[tuple[Run, Result | OneBertError]]:
    """Trains runs, up to `width` in one batch (same base, same entered layer); yields each with result or error."""
    for together in groups(runs):
        yield from _train_group(deque(together), width, report, checkpoint_of)


def _train_group(
    waiting: deque[Run], width: int, report: Report, checkpoint_of: Callable[[Run], Path | None]
) -> Iterator[tuple[Run, Result | OneBertError]]:
    active: list[Active] = []
    while waiting or active:
        while waiting and len(active) < width:
            run = waiting.popleft()
            try:
                active.append(Active.start(run, report, checkpoint_of(run)))
            except OneBertError as error:  # at a start with the exact head: the base's vectors are not finite
                yield run, error
        done = [training for training in active if training.is_done]
        for training in done:
            active.remove(training)
            yield training.run, training.finish(report)
        if active and not done:
            advance(active, report)


def groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups runs by base and entry layer, to step together; a run that changes the base's weights is alone."""
    grouped: dict[tuple[int, int | None, int], list[Run]] = {}
    for run in runs:
        alone = None if run.plan.shares_base else id(run)
        grouped.setdefault((id(run.base), alone, run.plan.lowest_layer), []).append(run)
    return list(grouped.values())


@dataclass(eq=False)
class Active:
    """A run in training; `extra_step` is an extra step at which it is evaluated, `error` has ended it."""

    run: Run
    state: State
    checkpoint_file: Path | None
    resumed_at: int = 0
    extra_step: int | None = None
    error: OneBertError | None = None

    @classmethod
    def start(cls, run: Run, report: Report, path: Path | None, extra_step: int | None = None) -> "Active":
        state = State(run.init_values(), run.averaged_steps)
        if path is not None and path.exists():
            resumed = state.restore(path, run.fingerprint)
            note = f"continued at step {state.step}" if resumed else "started anew: the checkpoint is not of this run"
            report(run, Progress(state.step, run.steps, note=note))
        active = cls(run, state, path, state.step, extra_step)
        if run.plan.exact:
            active.solve()
        return active

    def solve(self) -> None:
        """Finds the head of a run without steps; a base without finite vectors ends the run."""
        run, state = self.run, self.state
        try:
            solved, verdict = run.inputs.frozen.solve(run.objective, run.pooling, run.metric)
        except NotFinite as error:
            self.error = error
            return
        state.values = run.with_head(state.values, solved.head)
        answers = solved.answers
        state.keep(answers.loss, answers.scores, verdict, answers)
        state.folds, state.strength = answers.folds, solved.head.strength
        state.seconds = solved.seconds

    @property
    def is_done(self) -> bool:
        run, state = self.run, self.state
        stopped = bool(run.schedule.patience) and state.stale >= run.schedule.patience
        return self.error is not None or state.step >= run.steps or stopped

    def finish(self, report: Report) -> Result | OneBertError:
        """Measures the kept values on the test split; returns the error that ended the run, if any."""
        if self.error is not None:
            return self.error
        report(self.run, Progress(self.state.step, self.run.steps, testing=True))
        try:
            return finish(self.run, self.state, self.resumed_at)
        except OneBertError as error:
            return error

    def stepped(self, loss: float, seconds: float, once: float, report: Report) -> None:
        """Counts a step, and evaluates if it is time; a loss that is not finite ends this run. `once`: kept seconds."""
        run, state = self.run, self.state
        state.step_seconds += seconds - once
        started = time.perf_counter()
        validation = None
        evaluates = state.step % run.schedule.eval_every == 0 or state.step in (run.steps, self.extra_step)
        try:
            if not isfinite(loss):
                raise NotFinite(f"the loss is no longer a number at step {state.step}; {SMALLER}")
            state.losses = [state.losses[0] + loss, state.losses[1] + 1]
            mean = state.losses[0] / state.losses[1]
            if evaluates and run.validates:
                validation = validate(run, state)
            elif evaluates:
                keep_unvalidated(run, state)
        except NotFinite as error:
            self.error = error
            return
        state.seconds += seconds + time.perf_counter() - started
        if evaluates and self.checkpoint_file is not None:
            state.save(self.checkpoint_file, run.fingerprint)
        best, rate = state.validation.get(run.metric), state.tokens_per_second
        report(run, Progress(state.step, run.steps, mean, validation, best, rate))


def advance(active: Sequence[Active], report: Report) -> None:
    """Makes one step of every run, in as few batches as possible, and divides the time equally among them."""
    # Runs on the same data share their features; count their time only once.
    features = {id(shared): shared for shared in (training.run.features("train") for training in active)}.values()
    started, before = time.perf_counter(), sum(shared.seconds for shared in features)
    states = {training.run: training.state for training in active}
    loss_of: dict[Run, float] = {}
    for together in groups(list(states)):
        losses = take_step([(run, states[run]) for run in together])
        loss_of |= dict(zip(together, losses, strict=True))
    seconds = (time.perf_counter() - started) / len(active)
    once = (sum(shared.seconds for shared in features) - before) / len(active)
    for training in active:
        training.stepped(loss_of[training.run], seconds, once, report)


def take_step(active: Sequence[tuple[Run, State]]) -> list[float]:
    """Makes one optimizer step of every run in one batch; returns the loss of each, which depends on its row alone."""
    for run, state in active:
        run.plan.advance(state.step, run.steps, state.values)
    losses = compute_losses(active)
    # The keys' bias cancels in the softmax and does not change the loss: its missing gradient is set to zero.
    total = torch.stack(
        [loss + run.plan.penalty(state.values) for loss, (run, state) in zip(losses, active, strict=True)]
    ).sum()
    leaves = [leaf for _, state in active for leaf in state.leaves.values()]
    grads = iter(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))
    for run, state in active:
        state.update([next(grads) for _ in state.leaves], run.learning_rates_at(state.step))
        run.plan.advance(state.step, run.steps, state.values)
    # One transfer for all losses: every transfer from a GPU waits for it.
    return [float(loss) for loss in torch.stack(losses).tolist()]


def compute_losses(active: Sequence[tuple[Run, State]]) -> list[Tensor]:
    """The loss of every run on its next batch."""
    tokens, activations, row_of, chosen = [], [], [], []
    for row, (run, state) in enumerate(active):
        features, indices = run.features("train"), run.batch_at(state.step).tolist()
        chosen.append(indices)
        tokens += [features.tokens[i] for i in indices]
        activations += features.take(indices)
        row_of += [row] * len(indices)
        state.tokens += sum(len(run.inputs.splits["train"].tokens[i]) for i in indices)
    first = active[0][0]
    generators = [run.generator_at(state.step) for run, state in active]
    config = first.base.config
    dropout = Dropout(config.hidden_dropout, config.attention_dropout, generators)
    batch = pack(first.base, Sequences.of(tokens), row_of, layers=first.features("train").layers)
    view = first.view(active[0][1].values)
    rows = stack_rows(view, [run.fold_to_train(view, state.values) for run, state in active])
    logits = iter(compute_logits(view, rows, batch, dropout, joined(activations)).split())
    losses = []
    for (run, _), indices in zip(active, chosen, strict=True):
        losses.append(run.loss([next(logits) for _ in indices], indices))
    return losses
