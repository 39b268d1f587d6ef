"""The constant part of a training run: settings, base, data, tokens, schedule, loss."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from importlib.metadata import version
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import Row
from onebert_encoder.text.tokens import Tokens
from onebert_store.errors import InvalidSettings, TooLarge
from onebert_store.file.decision import Decision
from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT
from onebert_store.file.format import MAX_FILE_BYTES, MAX_HEADER_BYTES
from onebert_store.file.manifest import (
    PER_TOKEN,
    SIAMESE,
    Activation,
    HeadLayer,
    Manifest,
    Pooling,
    format_for,
    head_width,
    parse_manifest,
)
from onebert_store.spec import BaseSpec
from onebert_training.data.checks import positives_of
from onebert_training.data.dataset import digest_of
from onebert_training.data.examples import Split
from onebert_training.data.splitting import Fold
from onebert_training.fit.features import Features, Model, predict
from onebert_training.fit.inputs import BASELINE_SHARE, TaskInputs
from onebert_training.fit.settings import REVISION, Schedule, Settings
from onebert_training.heads.baselines import Baselines
from onebert_training.heads.exact import ExactHead, has_exact_head
from onebert_training.methods.methods import parse_method
from onebert_training.methods.plan import Plan
from onebert_training.tasks.objective import Logits, Measurement, Verdict

HIGH_RATE = 0.1


class Run:
    """A training run from its first step to its last; a `State` holds the changing part.

    Args:
        inputs: the forward pass uses the dtype of their base; trained values are always float32.
        fold: the training rows to train on, and those that the run answers at its end; None trains on all.

    Raises:
        InvalidMethod: the method does not exist, or does not fit the base.
        InvalidSettings: the base or the task type cannot take a setting.
        InvalidData: the task does not have the metric.
        InvalidManifest: a manifest cannot hold a label or a name.
        TooLarge: the delta file would be over the limit.
    """

    contrastive: ClassVar[bool] = False

    def __init__(self, inputs: TaskInputs, settings: Settings, task: str, fold: Fold | None = None) -> None:
        self.settings, self.task = settings, task
        self.base, self.data = inputs.base, inputs.data
        data, spec = self.data, self.base.spec
        self.method = parse_method(settings.method)
        self.pooling = self._pooling(of_exact_head=self.method.exact or settings.start == "head")
        self.inputs = inputs = inputs.reading(self.pooling, settings.cut)
        self.plan: Plan = self.method.plan(self.base.anatomy, self.pooling, spec.num_parameters)
        self.delta_parameters = self.plan.num_parameters
        self.head_parameters = len(data.labels) * (head_width(self.pooling, spec.hidden_size) + 1)
        self.percent = 100 * self.delta_parameters / spec.num_parameters
        self.objective = inputs.objective if settings.class_weight is None else inputs.weighted
        self.targets = inputs.targets
        self._require_exact_head()
        self.metric = self.objective.decides(data.splits["train"].own, settings.metric or data.metric)
        rates = self.plan.learning_rates(settings.learning_rate, settings.head_learning_rate)
        self.head_learning_rate, self.learning_rate = rates
        self.manifest = self._manifest()
        if self.plan.servable and self.plan.num_bytes + 4 * self.head_parameters > MAX_FILE_BYTES - MAX_HEADER_BYTES:
            raise TooLarge(f"the delta would be over the {MAX_FILE_BYTES >> 20} MiB of a file")
        self.notes = (*data.notes, *inputs.notes(), *self._notes())
        everyone = np.arange(len(data.splits["train"]))
        self.rows, self.held_out = fold or Fold(everyone, everyone[:0])
        self.validates = "validation" in data.splits
        self.schedule = Schedule.for_run(settings, len(self.rows), self.validates, self.warm)
        self.steps = 0 if self.plan.exact else self.schedule.steps
        self.averaged_steps = settings.averaging * self.steps if self.plan.averages else 0.0
        self._shuffled: tuple[int, NDArray[np.int64]] | None = None  # the epoch, and its order of the training rows

    def _pooling(self, of_exact_head: bool) -> Pooling:
        """For pairs, the frozen base is best with each text read on its own (decision 54)."""
        kind = self.data.task_type
        usual: Pooling = SIAMESE if of_exact_head and self.data.has_pairs else "mean"
        pooling: Pooling = self.settings.pooling or ("none" if kind in PER_TOKEN else usual)
        if pooling == SIAMESE and not self.data.has_pairs:
            raise InvalidSettings("siamese pooling compares the two texts of a pair, and this data has single texts")
        poolings = [known for known in self.base.spec.poolings if known != SIAMESE or self.data.has_pairs]
        possible = ["none"] if kind in PER_TOKEN else poolings
        if pooling not in possible:
            raise InvalidSettings(f"the pooling of a {kind} task here is {' or '.join(possible)}, not {pooling}")
        return pooling

    def _require_exact_head(self) -> None:
        kind, has = self.data.task_type, has_exact_head(self.objective)
        if self.plan.exact and not has:
            raise InvalidSettings(f"a {kind} task has no exact head; frozen trains the head alone by steps")
        if self.settings.start == "head" and (self.plan.reinit or not has):
            subject = self.method.text if self.plan.reinit else f"a {kind} task"
            raise InvalidSettings(f"{subject} has no exact head to start from; start fresh starts from nothing")

    def _manifest(self) -> Manifest:
        """Made before training, so that a label or a name that a manifest cannot hold is refused at once."""
        positives = positives_of(self.settings.positive, self.data.labels)
        cut = None if self.settings.cut == "head" else self.settings.cut
        decision = Decision(positives=positives or None, cut=cut) if positives or cut else None
        outputs, length = (self.data.task_type, list(self.data.labels)), self.inputs.max_length
        return make_manifest(
            self.base.spec, outputs, self.pooling, length, self.method.text, self.provenance(), decision
        )

    def _notes(self) -> Iterator[str]:
        """Notes on a metric that replaces a misleading default, on how pairs are read, and on a high learning rate."""
        why = self.objective.unevenness(self.data.splits["train"].own)
        if why is not None and not (self.settings.metric or self.data.metric):
            usual = self.objective.metrics[0]
            yield f"the labels are uneven, {why}: {self.metric} decides, not {usual}; --metric overrides"
        if self.data.has_pairs and self.data.task_type not in PER_TOKEN and not self.plan.exact:
            apart = "each text of a pair is read on its own; --pooling mean reads both as one"
            as_one = "both texts of a pair are read as one; --pooling siamese reads each on its own"
            yield apart if self.pooling == SIAMESE else as_one
        if (rate := self.settings.learning_rate or 0) > HIGH_RATE:
            yield f"--learning-rate {rate:g} is high: methods learn between 0.0001 and 0.01"

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal runs; a run continues only from a checkpoint with its own fingerprint."""
        decides = [
            *(REVISION, asdict(self.settings), self.learning_rate, self.head_learning_rate, self.metric),
            *(
                self.task,
                digest_of(self.data.task_type, self.data.labels, self.data.splits),
                self.base.spec.digest,
                str(self.base.dtype),
            ),
            *(self.base.device.type, torch.__version__, version("onebert"), self.held_out.tolist()),
        ]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @property
    def start(self) -> Literal["fresh", "head"] | None:
        """The start of the head: fresh, or the exact head; None for a run without steps."""
        return None if self.plan.exact else self.settings.start or "fresh"

    @property
    def warm(self) -> bool:
        """Whether it trains by contrast from the exact head: fewer steps are enough (decision 44)."""
        return self.contrastive and self.start == "head"

    @property
    def baselines(self) -> Baselines:
        """Scores without training, measured on first use; raises NotFinite if the base's vectors are not finite."""
        share = int(BASELINE_SHARE * self.schedule.steps * self.settings.batch_size)
        max_rows = len(self.rows) if self.plan.exact else share
        pooling = self._pooling(of_exact_head=True)
        return self.inputs.reading(pooling).frozen.baselines(self.objective, pooling, self.metric, max_rows)

    def features(self, split: str) -> Features:
        return self.inputs.splits[split].features(self.plan.lowest_layer, self.pooling)

    def batch_at(self, step: int) -> NDArray[np.int64]:
        """Training rows of a step; they depend on seed and step alone, so that an interrupted run can continue."""
        epoch, batch = divmod(step, self.schedule.steps_per_epoch)
        # One permutation serves the whole epoch: drawing one of 400,000 rows takes 13 ms.
        if self._shuffled is None or self._shuffled[0] != epoch:
            order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(self.rows))
            self._shuffled = epoch, self.rows[order]
        size = self.settings.batch_size
        return self._shuffled[1][batch * size : (batch + 1) * size]

    def generator_at(self, step: int) -> torch.Generator:
        """The generator of a step's dropout; it depends on seed and step alone."""
        # PyTorch's CPU generator reads only 32 bits of a seed: mix seed and step into 32 bits.
        mixed = np.random.SeedSequence([self.settings.seed, step]).generate_state(1)
        return torch.Generator(self.base.device).manual_seed(int(mixed[0]))

    def learning_rates_at(self, step: int) -> tuple[float, float]:
        """The learning rates of a step, of the head and of the rest."""
        share = self.schedule.share_at(step)
        return self.head_learning_rate * share, self.learning_rate * share

    def provenance(self) -> dict[str, Any]:
        """The manifest's facts about the training that are known before the first step."""
        return {
            "task": self.task,
            "data": {
                **self.data.facts,
                "rows": {name: len(split) for name, split in self.data.splits.items()},
                "measured": self._measured_digests(),
                **({"pairs": True} if self.data.has_pairs else {}),
            },
            "seed": self.settings.seed,
            **({} if self.plan.exact else self._of_steps()),
            **({"class_weight": self.settings.class_weight} if self.settings.class_weight else {}),
            **({"start": self.start} if self.start else {}),
            **({"contrastive": True} if self.contrastive else {}),
            "metric": self.metric,
            "parameters": {
                "delta": self.delta_parameters,
                "head": self.head_parameters,
                "percent": round(self.percent, 4),
            },
            "dtype": str(self.base.dtype).removeprefix("torch."),
            "onebert": version("onebert"),
        }

    def _measured_digests(self) -> dict[str, str]:
        data = self.data
        return {
            name: digest_of(data.task_type, data.labels, {name: split})
            for name, split in data.splits.items()
            if name != "train"
        }

    def _of_steps(self) -> dict[str, Any]:
        config = self.base.config
        return {
            "learning_rate": self.learning_rate,
            "head_learning_rate": self.head_learning_rate,
            "batch_size": self.settings.batch_size,
            "dropout": {"hidden": config.hidden_dropout, "attention": config.attention_dropout},
        }

    def init_values(self) -> dict[str, Tensor]:
        """The values at the start: leaves, and constants without a gradient."""
        values = self.plan.init(self.base, len(self.data.labels), self.settings.seed)
        head = self.baselines.head if self.settings.start == "head" else None
        if head is not None and len(self.held_out):
            head = self.exact_head(head.strength)
        return values if head is None else self.with_head(values, head)

    def exact_head(self, strength: float) -> ExactHead:
        """The exact head of the rows that are trained on; held-out rows have no part in it."""
        (head,) = (
            self.inputs.frozen.head_inputs("train", self.pooling).take(self.rows).heads(self.objective, [strength])
        )
        return head

    def with_head(self, values: Mapping[str, Tensor], head: ExactHead) -> dict[str, Tensor]:
        """The values with a copy of another head, which training may change; leaves stay leaves."""
        tensors = {HEAD_WEIGHT: torch.tensor(head.weight), HEAD_BIAS: torch.tensor(head.bias)}
        return {**values, **{name: tensor.to(self.base.device).requires_grad_() for name, tensor in tensors.items()}}

    def view(self, values: Mapping[str, Tensor]) -> Base:
        return self.plan.view(self.base, values)

    def tensors(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.plan.tensors(values, self.objective.target_scale)

    def row_tensors(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.plan.row_tensors(values, self.objective.target_scale)

    def fold(self, view: Base, values: Mapping[str, Tensor]) -> Row:
        return fold(view, self.row_tensors(values), self.pooling)

    def fold_to_train(self, view: Base, values: Mapping[str, Tensor]) -> Row:
        return self.fold(view, values)

    def loss(self, logits: Sequence[Tensor], rows: Sequence[int]) -> Tensor:
        """The loss of a step, [] float32, from the logits of some training rows; differentiable."""
        return self.objective.loss(logits, [self.targets["train"][i] for i in rows])

    @torch.no_grad()
    def model(self, values: Mapping[str, Tensor]) -> Model:
        """The result of the values: a delta on the shared base, as served, or a changed base; may raise NotFinite."""
        if not self.plan.servable:
            view = self.view(values)
            return Model(view, self.fold(view, values), None)
        tensors = self.tensors(values)
        numbers = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
        return Model(self.base, fold(self.base, numbers, self.pooling), tensors)

    def logits(self, model: Model, split: str, rows: Sequence[int] | None = None) -> list[Logits]:
        return predict(model.base, model.row, self.features(split), rows)

    def evaluate(self, model: Model, split: str) -> Measurement:
        """Metrics and loss on a split, without dropout; raises NotFinite if a logit is NaN or infinite."""
        logits = self.logits(model, split)
        with torch.no_grad():
            loss = self.objective.loss(list(map(torch.from_numpy, logits)), self.targets[split]).item()
        return Measurement(split, self.objective.evaluate(*self.rows_of(split), logits), loss, logits)

    def rows_of(self, split: str) -> tuple[Split, Sequence[Tokens]]:
        """Examples and tokens of a split, or of the rows that folds measure (`OUT_OF_FOLD`)."""
        inputs = self.inputs.frozen.bare(split)
        return inputs.examples, inputs.tokens

    def judge(self, measured: Measurement) -> Verdict:
        rows = self.rows_of(measured.split)
        return self.objective.judge(*rows, measured.logits, measured.scores, self.metric)


def make_manifest(
    spec: BaseSpec,
    outputs: tuple[str, list[str]],
    pooling: str,
    max_length: int,
    method: str,
    training: Mapping[str, Any],
    decision: Decision | None = None,
    activation: Activation = "tanh",
) -> Manifest:
    """The manifest of a delta without golden logits; `outputs` are the task type and its labels. InvalidManifest."""
    head = None if activation == "tanh" else HeadLayer(activation=activation)
    return parse_manifest(
        {
            "format": format_for(decision, head),
            "head": head and head.model_dump(),
            "decision": decision and decision.model_dump(exclude_none=True),
            "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
            "task_type": outputs[0],
            "labels": outputs[1],
            **{"pooling": pooling, "max_length": max_length, "method": method, "training": training},
        }
    )
