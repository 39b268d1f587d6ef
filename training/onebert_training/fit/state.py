"""The changing part of a run, and its checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT
from onebert_training.fit import checkpoint
from onebert_training.tasks.objective import Measurement, Verdict

CLIP = 1.0


@dataclass
class State:
    """A run between two steps.

    Attributes:
        values: leaves, which have a gradient, and the constants of the method, which have none.
        averaged_steps: number of steps over which the leaves are averaged; up to 1 averages nothing.
        kept_values: the values of the kept evaluation; `kept_step`, `kept_loss`, `warnings` and `useful` belong to it.
        measured: the kept evaluation itself, if this process made it; checkpoints leave it out.
        folds: number of folds behind `validation`; 0 for a validation split.
        stale: number of evaluations since the metric or the loss last got better.
        losses: sum and number of the training losses since the last evaluation.
        step_seconds: time of steps, without activations that are computed once and kept.
    """

    values: dict[str, Tensor]
    averaged_steps: float = 0.0
    step: int = 0
    kept_values: dict[str, Tensor] = field(default_factory=dict)
    kept_step: int = 0
    kept_loss: float = inf
    lowest_loss: float = inf
    validation: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    useful: bool = True
    measured: Measurement | None = None
    folds: int = 0
    strength: float | None = None
    stale: int = 0
    losses: list[float] = field(default_factory=lambda: [0.0, 0.0])
    history: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0

    _FACTS = (
        *("step", "kept_step", "kept_loss", "lowest_loss", "validation", "warnings", "useful", "stale", "losses"),
        *("history", "tokens", "seconds", "step_seconds"),
    )
    _MOMENTS = ("exp_avg", "exp_avg_sq")

    def __post_init__(self) -> None:
        self.leaves = {name: value for name, value in self.values.items() if value.requires_grad}
        self._means = (
            {name: leaf.detach().clone() for name, leaf in self.leaves.items()} if self.averaged_steps > 1 else {}
        )
        # By leaf with a sparse gradient: its dense buffer, and the buffer's nonzero rows.
        self._dense: dict[str, tuple[Tensor, Tensor]] = {}

    @cached_property
    def optimizer(self) -> torch.optim.AdamW:
        """AdamW with groups for the head and the rest; made late, because the first one imports PyTorch's compiler."""
        # The fused optimizer is fast for many small tensors: a run has a hundred leaves, and many runs step together.
        head = [leaf for name, leaf in self.leaves.items() if name in (HEAD_WEIGHT, HEAD_BIAS)]
        rest = [leaf for name, leaf in self.leaves.items() if name not in (HEAD_WEIGHT, HEAD_BIAS)]
        return torch.optim.AdamW([{"params": head}, {"params": rest}], weight_decay=0.0, fused=True)

    def update(self, grads: Sequence[Tensor], learning_rates: tuple[float, float]) -> None:
        """Takes an optimizer step with the learning rates of the head and of the rest.

        The gradients, in the order of the leaves, are scaled in place to a common norm of at most `CLIP`. A large
        table's gradient may be sparse, because a batch reads few of its rows.
        """
        for group, learning_rate in zip(self.optimizer.param_groups, learning_rates, strict=True):
            group["lr"] = learning_rate
        self._optimize(grads)
        self.step += 1
        if self._means:
            leaves = [leaf.detach() for leaf in self.leaves.values()]
            torch._foreach_lerp_(list(self._means.values()), leaves, 1 / min(self.step, self.averaged_steps))

    def _optimize(self, grads: Sequence[Tensor]) -> None:
        grads = [grad.coalesce() if grad.is_sparse else grad for grad in grads]
        numbers = [grad.values() if grad.is_sparse else grad for grad in grads]
        scale = (CLIP / (torch.nn.utils.get_total_norm(numbers) + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(numbers, scale)
        for (name, leaf), grad in zip(self.leaves.items(), grads, strict=True):
            leaf.grad = self._as_dense(name, grad) if grad.is_sparse else _laid_out_as(leaf, grad)
        self.optimizer.step()

    @property
    def averaged(self) -> dict[str, Tensor]:
        """The values without gradients: the exponential mean over `averaged_steps` steps (Polyak, Juditsky 1992)."""
        return {name: value.detach() for name, value in self.values.items()} | self._means

    def _as_dense(self, name: str, grad: Tensor) -> Tensor:
        """Reuses one dense buffer: zeroing a new one took a sixth of the time of all products."""
        dense, rows = self._dense.get(name) or (grad.new_zeros(grad.shape).to_dense(), grad.indices()[0, :0])
        dense[rows] = 0
        rows = grad.indices()[0]
        dense[rows] = grad.values()
        self._dense[name] = dense, rows
        return dense

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.step_seconds, 1e-9)

    def keep(
        self, loss: float, scores: dict[str, float], verdict: Verdict, measured: Measurement | None = None
    ) -> None:
        self.kept_values = {name: value.clone() for name, value in self.averaged.items()}
        self.kept_step, self.kept_loss, self.validation = self.step, loss, scores
        self.warnings, self.useful, self.measured = list(verdict.warnings), verdict.useful, measured

    def save(self, path: Path, fingerprint: str) -> None:
        """Writes the checkpoint; leaves out the kept values if this step's evaluation has kept them."""
        tensors = {f"value.{name}": value.detach() for name, value in self.values.items()}
        if self.kept_step != self.step:
            tensors |= {f"kept.{name}": value for name, value in self.kept_values.items()}
        tensors |= {f"mean.{name}": mean for name, mean in self._means.items()}
        for name, leaf in self.leaves.items():
            tensors |= {f"{moment}.{name}": self.optimizer.state[leaf][moment] for moment in self._MOMENTS}
        facts = {name: getattr(self, name) for name in self._FACTS}
        checkpoint.save(path, tensors, {"fingerprint": fingerprint, **facts})

    def restore(self, path: Path, fingerprint: str) -> bool:
        """Restores the state if the checkpoint is readable and of the same run; returns whether it did."""
        loaded = checkpoint.load(path)
        if loaded is None or loaded[1].get("fingerprint") != fingerprint:
            return False
        tensors, facts = loaded
        kinds = ("value",) if facts.get("kept_step") == facts.get("step") else ("value", "kept")
        shapes = {f"{kind}.{name}": value.shape for name, value in self.values.items() for kind in kinds}
        shapes |= {f"mean.{name}": mean.shape for name, mean in self._means.items()}
        shapes |= {f"{moment}.{name}": leaf.shape for name, leaf in self.leaves.items() for moment in self._MOMENTS}
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes or not facts.keys() >= set(self._FACTS):
            return False
        for name in self._FACTS:
            setattr(self, name, facts[name])
        for name, value in self.values.items():
            with torch.no_grad():
                value.copy_(tensors[f"value.{name}"])
        self._means = {name: tensors[f"mean.{name}"].to(mean.device) for name, mean in self._means.items()}
        for name, value in self.averaged.items():
            self.kept_values[name] = tensors.get(f"kept.{name}", value).to(value.device, copy=True)
        for name, leaf in self.leaves.items():
            moments = {moment: tensors[f"{moment}.{name}"].to(leaf.device) for moment in self._MOMENTS}
            self.optimizer.state[leaf] = {"step": torch.tensor(float(self.step), device=leaf.device), **moments}
        return True


def _laid_out_as(leaf: Tensor, grad: Tensor) -> Tensor:
    """Copies the gradient into the leaf's layout: the fused optimizer pairs numbers by place and reads no strides."""
    return grad if grad.stride() == leaf.stride() else torch.empty_like(leaf).copy_(grad)
