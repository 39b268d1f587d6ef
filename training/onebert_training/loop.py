"""The whole training loop: set up, fit, finish; the loss is computed by the `fold` and `encode` that serve."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.base import Base
from onebert_encoder.batch import pack
from onebert_encoder.fold import stack_rows
from onebert_encoder.predict import compute_golden, compute_logits
from onebert_store.delta import Delta
from onebert_store.errors import NotFinite
from onebert_training import checkpoint
from onebert_training.data import Dataset
from onebert_training.evaluation import in_float32
from onebert_training.leaves import count, file_tensors, init_leaves, to_arrays
from onebert_training.metrics import is_better
from onebert_training.run import Run, Settings

CLIP = 1.0


@dataclass(frozen=True)
class Progress:
    """Where a run is; `validation` is there after an evaluation (whose checkpoint is on disk by then)."""

    step: int
    steps: int
    loss: float
    validation: Mapping[str, float] | None = None


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        delta: with the best evaluation's tensors, provenance and golden logits.
        metric: the deciding one of `validation` and `test`.
        resumed_at: step of the checkpoint that the run continued from, 0 if from none.
        notes: what a user should know.
    """

    delta: Delta
    metric: str
    validation: Mapping[str, float]
    test: Mapping[str, float] | None
    delta_parameters: int
    head_parameters: int
    percent: float
    steps: int
    best_step: int
    resumed_at: int
    seconds: float
    tokens_per_second: float
    notes: tuple[str, ...]


def train(
    base: Base,
    data: Dataset,
    settings: Settings,
    task: str,
    report: Report = lambda _: None,
    checkpoint_file: Path | None = None,
) -> Result:
    """Trains one delta; the same arguments on the same machine give the same bytes.

    Args:
        base: frozen; its dtype is what the forward pass computes in, the delta is float32 always.
        data: with `train` and `validation` splits, and `test` where there is one.
        settings: what to do.
        task: the task's name, for the provenance.
        report: called after every step.
        checkpoint_file: kept up to date at every evaluation; a run with the same arguments continues from it.

    Raises:
        InvalidMethod: the base cannot take the method.
        InvalidSettings: a setting the base cannot take.
        InvalidManifest: a label that a manifest cannot hold.
        NotFinite: the loss is no longer a number.
    """
    run = Run(base, data, settings, task)
    state = State(init_leaves(run.plan, len(data.labels), base.spec.hidden_size, settings.seed, base.device))
    notes = [*data.notes, *run.notes]
    if checkpoint_file is not None and checkpoint_file.exists():
        resumed = state.restore(checkpoint_file, run.fingerprint)
        notes.append(f"continued at step {state.step}" if resumed else "started anew: the checkpoint is of another run")
    resumed_at = state.step
    devices = [base.device] if base.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        fit(run, state, report, checkpoint_file)
    return finish(run, state, resumed_at, tuple(notes))


@dataclass
class State:
    """What changes from step to step, and what a checkpoint holds."""

    leaves: dict[str, Tensor]
    step: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    best_step: int = 0
    validation: dict[str, float] = field(default_factory=dict)
    stale: int = 0
    tokens: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.leaves.values(), weight_decay=0.0)

    _FACTS = ("step", "best_step", "validation", "stale", "tokens", "seconds", "step_seconds")
    _MOMENTS = ("exp_avg", "exp_avg_sq")

    def save(self, path: Path, fingerprint: str) -> None:
        """Writes the checkpoint."""
        tensors = {f"leaf.{name}": leaf.detach() for name, leaf in self.leaves.items()}
        tensors |= {f"best.{name}": leaf for name, leaf in self.best.items()}
        for name, leaf in self.leaves.items():
            tensors |= {f"{moment}.{name}": self.optimizer.state[leaf][moment] for moment in self._MOMENTS}
        facts = {name: getattr(self, name) for name in self._FACTS}
        checkpoint.save(path, tensors, {"fingerprint": fingerprint, **facts})

    def restore(self, path: Path, fingerprint: str) -> bool:
        """Takes over the checkpoint if it is of the same run."""
        loaded = checkpoint.load(path)
        if loaded is None or loaded[1].get("fingerprint") != fingerprint:
            return False
        tensors, facts = loaded
        for name in self._FACTS:
            setattr(self, name, facts[name])
        for name, leaf in self.leaves.items():
            with torch.no_grad():
                leaf.copy_(tensors[f"leaf.{name}"])
            self.best[name] = tensors[f"best.{name}"].to(leaf.device)
            moments = {moment: tensors[f"{moment}.{name}"].to(leaf.device) for moment in self._MOMENTS}
            self.optimizer.state[leaf] = {"step": torch.tensor(float(self.step)), **moments}
        return True


def fit(run: Run, state: State, report: Report, checkpoint_file: Path | None) -> None:
    """Steps and evaluates until the end or until nothing gets better."""
    while state.step < run.steps and not (run.patience and state.stale >= run.patience):
        started = time.perf_counter()
        loss = take_step(run, state)
        state.step_seconds += time.perf_counter() - started
        validation = None
        if state.step % run.eval_every == 0 or state.step == run.steps:
            validation = validate(run, state)
        state.seconds += time.perf_counter() - started
        if validation is not None and checkpoint_file is not None:
            state.save(checkpoint_file, run.fingerprint)
        report(Progress(state.step, run.steps, loss, validation))


def take_step(run: Run, state: State) -> float:
    """One optimizer step; returns the loss."""
    base, chosen = run.base, run.batch_at(state.step)
    torch.manual_seed((run.settings.seed << 32) + state.step)  # dropout then needs no history, either
    tokens = [run.tokens["train"][i] for i in chosen]
    rows = stack_rows(base, [run.fold(state.leaves)])
    logits = compute_logits(base, rows, pack(base, tokens, [0] * len(tokens)), run.dropout)
    loss = run.loss(torch.stack(logits), run.gold[chosen])
    if not isfinite(loss.item()):
        raise NotFinite(f"the loss is not a finite number at step {state.step + 1}; try a smaller learning rate")
    leaves = list(state.leaves.values())
    # The key's bias cancels in the softmax; its gradient is zero rather than absent.
    for leaf, grad in zip(
        leaves, torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True), strict=True
    ):
        leaf.grad = grad
    torch.nn.utils.clip_grad_norm_(leaves, CLIP)
    state.optimizer.param_groups[0]["lr"] = run.learning_rate_at(state.step)
    state.optimizer.step()
    state.step += 1
    state.tokens += sum(map(len, tokens))
    return loss.item()


def validate(run: Run, state: State) -> dict[str, float]:
    """Evaluates on the validation split and keeps the leaves when they are the best so far."""
    scores = run.evaluate(state.leaves, "validation")
    if is_better(run.metric, scores[run.metric], state.validation.get(run.metric)):
        state.best = {name: leaf.detach().clone() for name, leaf in state.leaves.items()}
        state.best_step, state.validation, state.stale = state.step, scores, 0
    else:
        state.stale += 1
    return scores


def finish(run: Run, state: State, resumed_at: int, notes: tuple[str, ...]) -> Result:
    """Evaluates the best leaves on the test split and makes the delta."""
    started = time.perf_counter()
    test = run.evaluate(state.best, "test") if "test" in run.data.splits else None
    tensors = file_tensors(state.best, run.plan, run.unit)
    delta_parameters, head_parameters = count(state.best)
    percent = 100 * delta_parameters / run.base.spec.num_parameters
    training: dict[str, Any] = {
        "task": run.task,
        "data": {
            "name": run.data.name,
            "digest": run.data.digest,
            "rows": {name: len(split) for name, split in run.data.splits.items()},
        },
        "seed": run.settings.seed,
        "learning_rate": run.learning_rate,
        "batch_size": run.settings.batch_size,
        "epochs": round(state.step / run.steps_per_epoch, 3),
        "steps": state.step,
        "best_step": state.best_step,
        "metric": run.metric,
        "validation": state.validation,
        **({"test": test} if test is not None else {}),
        "parameters": {"delta": delta_parameters, "head": head_parameters, "percent": round(percent, 4)},
        "dropout": {"hidden": run.dropout.hidden, "attention": run.dropout.attention},
        "dtype": str(run.base.dtype).removeprefix("torch."),
        "onebert": version("onebert"),
    }
    with torch.no_grad():
        golden = compute_golden(in_float32(run.base), run.fold(state.best), run.max_length)
    manifest = run.manifest.model_copy(update={"training": training, "golden": golden})
    return Result(
        delta=Delta(manifest, to_arrays(tensors)),
        metric=run.metric,
        validation=state.validation,
        test=test,
        delta_parameters=delta_parameters,
        head_parameters=head_parameters,
        percent=percent,
        steps=state.step,
        best_step=state.best_step,
        resumed_at=resumed_at,
        seconds=state.seconds + time.perf_counter() - started,
        tokens_per_second=state.tokens / max(state.step_seconds, 1e-9),
        notes=notes,
    )
