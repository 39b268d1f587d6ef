"""Plans: the trained parts of one base, from the values at the start to the tensors of the delta file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from onebert_encoder.base.anatomy import ABOVE, Module, Parameter
from onebert_encoder.base.base import Base
from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT
from onebert_store.file.manifest import Pooling, head_width
from onebert_training.methods.rules import HEAD_LEARNING_RATE
from onebert_training.methods.trainables import Tensors, Trainable
from onebert_training.methods.weights import reinitialized
from onebert_training.target_scale import TargetScale

FRESH = "fresh."


@dataclass(frozen=True)
class Plan:
    """A method's parts on one base: `trainables` (a base-changing one last), `reinit`, default `learning_rate`."""

    num_layers: int
    trainables: tuple[Trainable, ...]
    reinit: bool
    pooling: Pooling
    learning_rate: float
    exact: bool = False

    @property
    def num_parameters(self) -> int:
        """Trained numbers that remain, without the classifier head (as the papers count)."""
        return sum(trainable.num_parameters for trainable in self.trainables)

    @property
    def num_trained(self) -> int:
        """Numbers that steps change, without the classifier head; more than remain if matrices are cut."""
        return sum(trainable.num_trained for trainable in self.trainables)

    @property
    def num_bytes(self) -> int:
        """Upper limit for the bytes of the file's tensors without the head."""
        return sum(trainable.num_bytes for trainable in self.trainables)

    @property
    def trains_head_alone(self) -> bool:
        return not self.trainables

    def learning_rates(self, of_rest: float | None, of_head: float | Literal["same"] | None) -> tuple[float, float]:
        """The peak learning rates of the head and of the rest; `same` copies the rate of the rest.

        The head starts from nothing: its default does not fall on a wide base or beside a method that needs small
        steps. A rate given for a head alone is the head's rate.
        """
        rest = of_rest or self.learning_rate
        if of_head == "same":
            return rest, rest
        if of_head is None:
            of_head = rest if self.trains_head_alone else max(HEAD_LEARNING_RATE, rest)
        return of_head, rest

    @property
    def shares_base(self) -> bool:
        """Whether the base stays as it is, so that other runs can use it in the same step."""
        return not self.reinit and not any(trainable.changes_base for trainable in self.trainables)

    @property
    def servable(self) -> bool:
        """Whether the result is a delta for the base; otherwise the base itself changes."""
        return not self.reinit and all(trainable.servable for trainable in self.trainables)

    @property
    def averages(self) -> bool:
        """Whether the mean of the values over some steps can replace them."""
        return all(trainable.averages for trainable in self.trainables)

    @property
    def lowest_layer(self) -> int:
        """The lowest layer that training can change; lower layers compute the same as in the bare base."""
        if not self.shares_base:
            return 0
        sites = (site for trainable in self.trainables for site in trainable.sites)
        return min((_layer(site, self.num_layers) for site in sites), default=self.num_layers)

    def init(self, base: Base, num_labels: int, seed: int) -> Tensors:
        """The values at the start, on the base's device; the seed draws the same values on every device.

        They are leaves (float32, requiring a gradient) with the head's; and constants: drawn indices (int64) and, with
        `reinit`, the base's random parameters (float32).
        """
        generator = torch.Generator().manual_seed(seed)  # on the CPU: every device starts with the same values
        fresh = reinitialized(base, generator) if self.reinit else {}
        params, leaves = base.params | fresh, Tensors()
        for trainable in self.trainables:
            leaves |= trainable.init(params, generator)
        width = head_width(self.pooling, base.spec.hidden_size)
        leaves[HEAD_WEIGHT] = torch.empty(num_labels, width).normal_(0, 0.02, generator=generator)
        leaves[HEAD_BIAS] = torch.zeros(num_labels)
        constants = {f"{FRESH}{name}": value.to(base.device) for name, value in fresh.items()}
        return constants | {
            name: value.to(base.device).requires_grad_(value.is_floating_point()) for name, value in leaves.items()
        }

    def view(self, base: Base, values: Mapping[str, Tensor]) -> Base:
        """The base that a training step encodes with; also the final base if the result is not a delta."""
        if self.shares_base:
            return base
        changed = {name.removeprefix(FRESH): value for name, value in values.items() if name.startswith(FRESH)}
        for trainable in self.trainables:
            changed |= trainable.changed(base.params | changed, values)
        return base.with_params(changed)

    def row_tensors(self, values: Mapping[str, Tensor], scale: TargetScale) -> Tensors:
        """The tensors that `fold` reads on top of `view`, by the names of the delta file; differentiable."""
        out: Tensors = {}
        for trainable in self.trainables:
            out |= {} if trainable.changes_base else trainable.tensors(values)
        out[HEAD_WEIGHT] = values[HEAD_WEIGHT] * scale.spread
        out[HEAD_BIAS] = values[HEAD_BIAS] * scale.spread + scale.mean
        return out

    def tensors(self, values: Mapping[str, Tensor], scale: TargetScale) -> Tensors:
        """The tensors of a `servable` plan's file: float32 or half precision, indices int64; may raise NotFinite."""
        tensors = self.row_tensors(values, scale)
        for trainable in self.trainables:
            tensors |= trainable.tensors(values) if trainable.changes_base else {}
        return tensors

    def penalty(self, values: Mapping[str, Tensor]) -> Tensor | float:
        return sum(trainable.penalty(values) for trainable in self.trainables)

    def advance(self, step: int, steps: int, values: Mapping[str, Tensor]) -> None:
        """Must be called before and after every step with the number of steps done; may change values in place."""
        for trainable in self.trainables:
            trainable.advance(step, steps, values)


def _layer(site: Parameter | Module, num_layers: int) -> int:
    """The embeddings belong to layer 0, the final LayerNorm and the pooler to one layer above the last."""
    if site.layer is not None:
        return site.layer
    return num_layers if site.symbol in ABOVE else 0
