"""The whole training loop: set up, fit, finish; the loss is computed by the `fold` and `encode` that serve."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from onebert_encoder.batch import pack
from onebert_encoder.fold import stack_rows
from onebert_encoder.predict import compute_golden, compute_logits
from onebert_store.delta import Delta, check
from onebert_store.errors import NotFinite
from onebert_store.manifest import parse_manifest
from onebert_training import checkpoint
from onebert_training.evaluation import in_float32
from onebert_training.metrics import is_better
from onebert_training.run import Run

CLIP = 1.0
SMALLER = "try a smaller learning rate"


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Attributes:
        loss: of the step; None before the first one.
        validation: there after an evaluation, whose checkpoint is on disk by then.
        note: something that a user should know now.
        testing: the steps are done; what is left is the test split.
    """

    step: int
    steps: int
    loss: float | None = None
    validation: Mapping[str, float] | None = None
    note: str | None = None
    testing: bool = False


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        delta: with the best evaluation's tensors, provenance and golden logits.
        metric: the deciding one of `validation` and `test`.
        resumed_at: step of the checkpoint that the run continued from, 0 if from none.
        seconds: wall clock, with the time before an interruption.
    """

    delta: Delta
    metric: str
    validation: Mapping[str, float]
    test: Mapping[str, float] | None
    steps: int
    best_step: int
    resumed_at: int
    seconds: float
    tokens_per_second: float


def train(run: Run, report: Report = lambda _: None, checkpoint_file: Path | None = None) -> Result:
    """Trains one delta; an equal run on the same machine and as many threads gives the same bytes.

    On CUDA equal runs may differ in the last digits: sums there follow no fixed order.

    Args:
        run: what to train on what.
        report: called after every step, before the first one where a checkpoint was found, and before the test.
        checkpoint_file: kept up to date at every evaluation; an equal run continues from it.

    Raises:
        NotFinite: the loss is no longer a number.
    """
    state = State(run.init_leaves())
    if checkpoint_file is not None and checkpoint_file.exists():
        resumed = state.restore(checkpoint_file, run.fingerprint)
        note = f"continued at step {state.step}" if resumed else "started anew: the checkpoint is not of this run"
        report(Progress(state.step, run.steps, note=note))
    resumed_at = state.step
    with torch.random.fork_rng([run.base.device] if run.base.device.type == "cuda" else []):
        fit(run, state, report, checkpoint_file)
    report(Progress(state.step, run.steps, testing=True))
    return finish(run, state, resumed_at)


@dataclass
class State:
    """What changes from step to step, and what a checkpoint holds."""

    leaves: dict[str, Tensor]
    step: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    best_step: int = 0
    best_loss: float = inf
    lowest_loss: float = inf
    validation: dict[str, float] = field(default_factory=dict)
    stale: int = 0
    tokens: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.leaves.values(), weight_decay=0.0)

    _FACTS = (
        "step",
        "best_step",
        "best_loss",
        "lowest_loss",
        "validation",
        "stale",
        "tokens",
        "seconds",
        "step_seconds",
    )
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
        """Takes over the checkpoint if it is whole and of the same run, and nothing of it otherwise."""
        loaded = checkpoint.load(path)
        if loaded is None or loaded[1].get("fingerprint") != fingerprint:
            return False
        tensors, facts = loaded
        kinds = ("leaf", "best", *self._MOMENTS)
        shapes = {f"{kind}.{name}": leaf.shape for name, leaf in self.leaves.items() for kind in kinds}
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes or not facts.keys() >= set(self._FACTS):
            return False
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
        raise NotFinite(f"the loss is no longer a number at step {state.step + 1}; {SMALLER}")
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
    """Evaluates on the validation split and keeps the leaves when they are the best so far; the loss breaks ties."""
    try:
        scores, loss = run.evaluate(state.leaves, "validation")
    except NotFinite:
        raise NotFinite(f"the answers are no longer numbers at step {state.step}; {SMALLER}") from None
    score, best = scores[run.metric], state.validation.get(run.metric)
    # A metric may stand still for long, at the score of the commonest label, while the loss shows that it will move.
    state.stale = 0 if is_better(run.metric, score, best) or loss < state.lowest_loss else state.stale + 1
    state.lowest_loss = min(loss, state.lowest_loss)
    if is_better(run.metric, score, best) or (score == best and loss < state.best_loss):
        state.best = {name: leaf.detach().clone() for name, leaf in state.leaves.items()}
        state.best_step, state.best_loss, state.validation = state.step, loss, scores
    return scores


def finish(run: Run, state: State, resumed_at: int) -> Result:
    """Evaluates the best leaves on the test split and makes the delta.

    Raises:
        NotFinite: an answer of the best leaves is not a number.
        InvalidManifest: a metric is not.
    """
    started = time.perf_counter()
    test = run.evaluate(state.best, "test")[0] if "test" in run.data.splits else None
    training = {
        **run.provenance(),
        "epochs": round(state.step / run.steps_per_epoch, 3),
        "steps": state.step,
        "best_step": state.best_step,
        "validation": state.validation,
        **({"test": test} if test is not None else {}),
    }
    with torch.no_grad():
        tensors = run.tensors(state.best)
        try:
            golden = compute_golden(in_float32(run.base), run.fold(state.best), run.max_length)
        except ValidationError:
            raise NotFinite(f"the answers are no longer numbers; {SMALLER}") from None
    manifest = parse_manifest({**run.manifest.model_dump(), "training": training, "golden": golden.model_dump()})
    delta = Delta(manifest, {name: tensor.cpu().numpy() for name, tensor in tensors.items()})
    check(delta, run.base.spec)
    return Result(
        delta=delta,
        metric=run.metric,
        validation=state.validation,
        test=test,
        steps=state.step,
        best_step=state.best_step,
        resumed_at=resumed_at,
        seconds=state.seconds + time.perf_counter() - started,
        tokens_per_second=state.tokens / max(state.step_seconds, 1e-9),
    )
