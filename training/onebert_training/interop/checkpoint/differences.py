"""Splits a checkpoint's changes into exact tensors, matrices to factorize, and changes that a delta cannot hold."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_store.file.canonical import Array
from onebert_store.file.delta import DELTA, HEAD_BIAS, HEAD_DENSE_BIAS, HEAD_DENSE_WEIGHT, HEAD_WEIGHT
from onebert_training.interop.checkpoint.finetuned import FineTuned
from onebert_training.interop.heads import POOLER


@dataclass(frozen=True)
class LeftOut:
    """A changed parameter that a delta cannot hold; `size` is the difference's norm relative to the base's."""

    name: str
    rows: int
    of: int
    size: float

    def __str__(self) -> str:
        return f"{self.name} ({self.rows:,} of {self.of:,} rows differ, by {self.size:.2%} of its norm)"


def exact_tensors(checkpoint: FineTuned, base: Base) -> tuple[dict[str, Array], str]:
    """The head and the differences of biases and LayerNorms, by their names in a delta file; and the pooling.

    A changed pooler becomes the head's tanh layer on the first token. Unchanged parameters are left out.
    """
    theirs, head, pooling = checkpoint.params, checkpoint.head, checkpoint.head.pooling
    found = {HEAD_WEIGHT: theirs[f"{head.linear}.weight"], HEAD_BIAS: theirs[f"{head.linear}.bias"]}
    if head.dense is not None:
        weight, bias = theirs[f"{head.dense}.weight"], theirs[f"{head.dense}.bias"]
        of_base = base.params.get(f"{head.dense}.weight")
        if of_base is not None and torch.equal(weight, of_base):
            pooling = "pooler"
        else:
            found |= {HEAD_DENSE_WEIGHT: weight, HEAD_DENSE_BIAS: bias}
    for name in base.spec.parameters:
        if pooling == "pooler" or not name.startswith(POOLER):
            difference = theirs[name] - base.params[name]
            if difference.any():
                found[DELTA + name] = difference
    return {name: tensor.contiguous().numpy() for name, tensor in found.items()}, pooling


def changed_matrices(params: Mapping[str, Tensor], base: Base) -> dict[str, Tensor]:
    """Differences of the layers' matrices by module, without unchanged ones."""
    found = {name: params[f"{name}.weight"] - base.params[f"{name}.weight"] for name in base.spec.modules}
    return {name: difference for name, difference in found.items() if difference.any()}


def changed_tables(params: Mapping[str, Tensor], base: Base) -> list[LeftOut]:
    """Changes to the embeddings, and to ELECTRA's projection behind them."""
    held = base.spec.parameters.keys() | {f"{name}.weight" for name in base.spec.modules} | {f"{POOLER}.weight"}
    found = []
    for name in base.anatomy.weights:
        if name not in held:
            difference = params[name] - base.params[name]
            rows = int(difference.any(dim=1).sum())
            if rows:
                size = float(difference.norm() / base.params[name].norm())
                found.append(LeftOut(name, rows, len(difference), size))
    return found
