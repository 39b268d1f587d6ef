"""What one training run is, from its first step to its last: settings, base, data, tokens, schedule, loss."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.base import Base
from onebert_encoder.encode import Dropout
from onebert_encoder.fold import Row, fold
from onebert_store.errors import InvalidSettings, TooLarge
from onebert_store.format import MAX_FILE_BYTES, MAX_HEADER_BYTES
from onebert_store.manifest import Manifest, Pooling, parse_manifest
from onebert_training.data import Dataset
from onebert_training.evaluation import predict
from onebert_training.leaves import Unit, file_tensors, init_leaves
from onebert_training.methods import Plan, parse_method
from onebert_training.metrics import evaluate_predictions, primary_metric

WARMUP = 0.06


@dataclass(frozen=True)
class Settings:
    """What a run is asked to do.

    Attributes:
        learning_rate: peak of the schedule; None takes the method's own.
        max_steps: end after so many steps, should the epochs hold more.
        patience: stop after so many evaluations in which neither metric nor loss got better; None is two epochs'
            worth, 0 never stops.
        metric: decides which evaluation is the best; None takes the data's or the task type's.
    """

    method: str = "bitfit"
    pooling: Pooling = "mean"
    max_length: int = 128
    epochs: int = 10
    max_steps: int | None = None
    batch_size: int = 16
    learning_rate: float | None = None
    seed: int = 0
    evals_per_epoch: int = 4
    patience: int | None = None
    metric: str | None = None


class Run:
    """What stays as it is from the first step to the last.

    Args:
        base: frozen; its dtype is what the forward pass computes in, the delta is float32 always.
        data: with `train` and `validation` splits, and `test` where there is one.
        settings: what to do.
        task: the task's name, for the provenance.

    Raises:
        InvalidMethod: not a method, or one that the base cannot take.
        InvalidSettings: a setting that the base cannot take.
        InvalidData: a metric that the task does not have.
        InvalidManifest: a label or a name that a manifest cannot hold.
        TooLarge: the delta file would be over the limit.
    """

    def __init__(self, base: Base, data: Dataset, settings: Settings, task: str) -> None:
        self.base, self.data, self.settings, self.task = base, data, settings, task
        if settings.pooling not in base.spec.poolings:
            raise InvalidSettings(f"this base has {', '.join(base.spec.poolings)} pooling, not {settings.pooling}")
        self.method = parse_method(settings.method)
        self.plan: Plan = self.method.plan(base.anatomy, settings.pooling)
        self.delta_parameters = self.plan.num_parameters
        self.head_parameters = len(data.labels) * (base.spec.hidden_size + 1)
        self.percent = 100 * self.delta_parameters / base.spec.num_parameters
        if 4 * (self.delta_parameters + self.head_parameters) > MAX_FILE_BYTES - MAX_HEADER_BYTES:
            raise TooLarge(f"the delta would be over the {MAX_FILE_BYTES >> 20} MiB of a file")
        self.metric = primary_metric(data.task_type, len(data.labels), settings.metric or data.metric)
        self.max_length = min(settings.max_length, base.spec.max_length)
        self.learning_rate = settings.learning_rate or self.plan.learning_rate
        self.dropout = Dropout(base.config.hidden_dropout, base.config.attention_dropout)
        self.manifest = self._manifest()
        self.tokens = {name: base.tokenizer.encode(split.texts, self.max_length) for name, split in data.splits.items()}
        self.notes = (*data.notes, *self._notes())
        self.gold = torch.from_numpy(data.splits["train"].gold).to(base.device)
        self.unit = Unit()
        if data.task_type == "regression":
            train = data.splits["train"].gold.astype(np.float64)
            self.unit = Unit(float(train.mean()), float(train.std()))
        self.steps_per_epoch = ceil(len(self.gold) / settings.batch_size)
        self.steps = min(settings.epochs * self.steps_per_epoch, settings.max_steps or 2**62)
        self.eval_every = ceil(self.steps_per_epoch / settings.evals_per_epoch)
        self.patience = 2 * settings.evals_per_epoch if settings.patience is None else settings.patience

    def _manifest(self) -> Manifest:
        """Made before training, so that a label or a name it cannot hold is refused at once."""
        spec = self.base.spec
        return parse_manifest(
            {
                "format": 1,
                "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
                "task_type": self.data.task_type,
                "labels": list(self.data.labels),
                "pooling": self.settings.pooling,
                "max_length": self.max_length,
                "method": self.method.text,
                "training": self.provenance(),
            }
        )

    def _notes(self) -> list[str]:
        cut = sum(tokens.truncated for tokens in self.tokens["train"])
        if not cut:
            return []
        return [f"{cut} of {len(self.tokens['train'])} training texts are cut to {self.max_length} tokens"]

    @property
    def fingerprint(self) -> str:
        """What must be equal for a checkpoint to belong to this run."""
        parts = [
            *(asdict(self.settings), self.task, self.data.digest, self.base.spec.digest, str(self.base.dtype)),
            *(self.base.device.type, torch.__version__, version("onebert")),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def batch_at(self, step: int) -> NDArray[np.int64]:
        """Training rows of a step: each epoch is its own fixed shuffle, so a step needs no history."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(self.gold))
        size = self.settings.batch_size
        return order[place * size : (place + 1) * size]

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, then linear decay to zero."""
        warmup = max(1, ceil(WARMUP * self.steps))
        rise, fall = (step + 1) / warmup, (self.steps - step) / max(1, self.steps - warmup)
        return self.learning_rate * min(1.0, rise, fall)

    def provenance(self) -> dict[str, Any]:
        """What the manifest says about the run, as far as it is known before the first step."""
        return {
            "task": self.task,
            "data": {
                "name": self.data.name,
                "digest": self.data.digest,
                "rows": {name: len(split) for name, split in self.data.splits.items()},
            },
            "seed": self.settings.seed,
            "learning_rate": self.learning_rate,
            "batch_size": self.settings.batch_size,
            "metric": self.metric,
            "parameters": {
                "delta": self.delta_parameters,
                "head": self.head_parameters,
                "percent": round(self.percent, 4),
            },
            "dropout": asdict(self.dropout),
            "dtype": str(self.base.dtype).removeprefix("torch."),
            "onebert": version("onebert"),
        }

    def init_leaves(self) -> dict[str, Tensor]:
        """Where training starts."""
        spec = self.base.spec
        return init_leaves(self.plan, len(self.data.labels), spec.hidden_size, self.settings.seed, self.base.device)

    def tensors(self, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The leaves as the delta file holds them."""
        return file_tensors(leaves, self.plan, self.unit)

    def fold(self, leaves: Mapping[str, Tensor]) -> Row:
        """The row of the leaves; differentiable."""
        return fold(self.base, self.tensors(leaves), self.settings.pooling)

    def loss(self, logits: Tensor, gold: Tensor) -> Tensor:
        """Mean loss of a batch, float32."""
        if self.data.task_type == "single_label":
            return F.cross_entropy(logits, gold)
        if self.data.task_type == "multi_label":
            return F.binary_cross_entropy_with_logits(logits, gold)
        return F.mse_loss(logits[:, 0] / self.unit.spread, gold / self.unit.spread)

    def evaluate(self, leaves: Mapping[str, Tensor], split: str) -> tuple[dict[str, float], float]:
        """Metrics and loss on a split, without dropout."""
        with torch.no_grad():
            row = self.fold(leaves)
        logits, gold = predict(self.base, row, self.tokens[split]), self.data.splits[split].gold
        scores = evaluate_predictions(self.data.task_type, gold, logits)
        return scores, self.loss(torch.from_numpy(logits), torch.from_numpy(gold)).item()
