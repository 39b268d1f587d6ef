"""Shows which layers and symbols of a delta matter: runs it whole and with each of them removed, in one batch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from onebert_encoder.base.anatomy import ABOVE
from onebert_encoder.base.base import Base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import diverges_at, stack_rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_store.file.delta import DELTA, HEAD_WEIGHT, POOLER_SYMBOL
from onebert_store.file.manifest import Manifest
from onebert_store.spec import BaseSpec

Kind = Literal["whole", "base", "layer", "symbol"]

# Matches the layer index in a parameter's name, in every family of bases.
LAYER = re.compile(r"(?:^|(?<=\.))layers?\.(\d{1,9})\.")
# Names for tensors below the first layer and above the last.
EMBEDDINGS, FINAL_NORM, POOLER = "embeddings", "final norm", "pooler"
_HEAD = HEAD_WEIGHT.partition(".")[0] + "."


@dataclass(frozen=True)
class Removed:
    """The rest of a delta: `whole`, `base` (the head alone), or without the `layer` or `symbol` that `name` names."""

    kind: Kind
    name: str
    tensors: Mapping[str, Tensor]


def removals(tensors: Mapping[str, Tensor], spec: BaseSpec) -> list[Removed]:
    """A delta whole, its head alone, and the delta without each layer and each symbol that it changes."""
    layer_of = {name: _layer(name, spec) for name in tensors if not name.startswith(_HEAD)}
    symbol_of = {name: _symbol(name, spec) for name in layer_of}
    order = [EMBEDDINGS, *map(str, range(spec.num_layers)), FINAL_NORM, POOLER]

    def without(of: Mapping[str, str], gone: str) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in tensors.items() if of.get(name) != gone}

    return [
        Removed("whole", "", tensors),
        Removed("base", "", {name: tensor for name, tensor in tensors.items() if name not in layer_of}),
        *(Removed("layer", part, without(layer_of, part)) for part in sorted({*layer_of.values()}, key=order.index)),
        *(Removed("symbol", part, without(symbol_of, part)) for part in sorted({*symbol_of.values()})),
    ]


def _symbol(name: str, spec: BaseSpec) -> str:
    path = name.partition(".")[2]
    if not name.startswith(DELTA):
        # An adapter's tensors are the weights and biases of two maps.
        path = path.removesuffix(".weight").removesuffix(".bias")
    return spec.symbols[path]


def _layer(name: str, spec: BaseSpec) -> str:
    if match := LAYER.search(name.partition(".")[2]):
        return match[1]
    symbol = _symbol(name, spec)
    if symbol in ABOVE:
        return POOLER if symbol == POOLER_SYMBOL else FINAL_NORM
    return EMBEDDINGS


class RemovedRows:
    """The rows of a delta with parts removed, folded once."""

    def __init__(self, base: Base, removed: Sequence[Removed], manifest: Manifest) -> None:
        self._base = base
        with torch.no_grad():
            bare = fold(base, {})
            rows = [fold(base, part.tensors, manifest.pooling, manifest.activation) for part in removed]
            self._rows = stack_rows(base, [bare, *rows])
        self._diverges_at = [diverges_at(row, bare, base) for row in rows]

    def logits(self, tokens: Sequence[Tokens]) -> list[list[Tensor]]:
        """Logits by row (in the order of `removed`) and input, [labels] or [tokens, labels]; shared layers run once."""
        of_rows = range(len(self._diverges_at))
        inputs = [text for _ in of_rows for text in tokens]
        rows = [1 + row for row in of_rows for _ in tokens]
        diverges = [self._diverges_at[row] for row in of_rows for _ in tokens]
        with torch.inference_mode():
            batch = pack(self._base, Sequences.of(inputs), rows, diverges)
            logits = compute_logits(self._base, self._rows, batch).split()
        return [logits[start : start + len(tokens)] for start in range(0, len(logits), len(tokens))]
