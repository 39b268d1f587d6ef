"""Folding: a task's bias differences moved through the network into the few vectors that `encode` adds.

Exact algebra for a post-LayerNorm encoder without dropout (docs/decisions/0001-fold.md derives each line). The stream
between layers is kept without the bias of the LayerNorm that made it; `prev` below is that missing bias. For layer l:

    b_q'  = b_q  + W_q  prev                      the key's bias cancels in the softmax
    b_m1' = b_m1 + W_m1 (b_v + W_v prev) + prev   attention rows sum to 1, so the value's bias passes through
    b_m2' = b_m2 + W_m2 b_LN1
    b_m3' = b_m3 + b_LN1
    prev  = b_LN2                                 the last one goes into what reads the pooled vector

Every W is W + BA where the task has a low-rank difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onebert_encoder.base import Base
from onebert_store.delta import Delta

# The matrix products of a layer that a low-rank difference may join, and the maps that each one computes.
SITES: Mapping[str, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "m1": ("m1",), "m2": ("m2",), "m3": ("m3",)}

LowRank = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Head:
    """What reads the encoder's last layer: zero or more tanh layers on the pooled vector, then the classifier.

    Attributes:
        pooling: `mean` reads the mean over tokens, `none` every token for itself, the others the first token.
        dense: (W [h, h], b [h]) of each tanh layer; the base's pooler is the first where the task uses it.
        weight: [labels, h], float32.
        bias: [labels], float32.
    """

    pooling: str
    dense: tuple[tuple[Tensor, Tensor], ...]
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Row:
    """One folded task; float32.

    Attributes:
        shift: [layers, 3h + f], the vectors b_q' b_m1' b_m3' (h each) and b_m2' (f) of each layer.
        g_LN0: [e], the embedding LayerNorm's gain, or None where the base's holds.
        gain: [layers, 2, h], g_LN1 and g_LN2, or None where the base's hold.
        lora: (layer, site) -> A [r, in], B [out, r].
        head: the classifier, or None for the bare base.
    """

    shift: Tensor
    g_LN0: Tensor | None
    gain: Tensor | None
    lora: Mapping[tuple[int, str], LowRank]
    head: Head | None


@dataclass(frozen=True)
class Rows:
    """Several rows on the compute device, indexed by the first dimension; what `encode` gathers from.

    Attributes:
        shift: [rows, layers, 3h + f], compute dtype.
        g_LN0: [gains, e], compute dtype; entry 0 is the base's.
        gain: [gains, layers, 2, h], compute dtype; entry 0 is the base's.
        gain_of_row: index into the gains for each row; 0 where the base's hold.
        lora: for each row its low-rank differences in the compute dtype, mostly empty.
        heads: the classifier of each row.
    """

    shift: Tensor
    g_LN0: Tensor
    gain: Tensor
    gain_of_row: Sequence[int]
    lora: Sequence[Mapping[tuple[int, str], LowRank]]
    heads: Sequence[Head | None]


def to_tensors(delta: Delta, base: Base) -> dict[str, Tensor]:
    """A delta's tensors as float32 on the base's device, by their names in the file."""
    return {name: torch.from_numpy(array.astype("float32")).to(base.device) for name, array in delta.tensors.items()}


def fold(base: Base, tensors: Mapping[str, Tensor], pooling: str = "mean") -> Row:
    """Folds one task; differentiable in every tensor, exact up to float32 rounding.

    Args:
        base: the frozen encoder.
        tensors: named as in the delta file; without `head.weight` the row is the bare encoder.
        pooling: `cls`, `mean`, `pooler` or `none`.
    """
    return _Folding(base, tensors).row(pooling)


class _Folding:
    """The changed parameters of one task, read by symbol."""

    def __init__(self, base: Base, tensors: Mapping[str, Tensor]) -> None:
        self.base = base
        self.tensors = tensors

    def param(self, symbol: str, layer: int | None = None) -> Tensor:
        """The task's value of a bias or gain: the base's plus the difference."""
        name = self.base.anatomy.name(symbol, layer)
        value = self.base.params[name]
        difference = self.tensors.get(f"delta.{name}")
        return value if difference is None else value + difference

    def low_rank(self, part: str, layer: int) -> LowRank | None:
        path = self.base.anatomy.path(part, layer)
        A = self.tensors.get(f"lora_A.{path}")
        return None if A is None else (A, self.tensors[f"lora_B.{path}"])

    def apply(self, part: str, layer: int, vector: Tensor) -> Tensor:
        """(W + BA) vector, without forming the sum."""
        out = self.base.param(f"W_{part}", layer) @ vector
        low_rank = self.low_rank(part, layer)
        return out if low_rank is None else out + low_rank[1] @ (low_rank[0] @ vector)

    def row(self, pooling: str) -> Row:
        prev = self.param("b_LN0")
        if self.base.anatomy.has_projection:
            prev = self.param("b_e") + self.base.param("W_e") @ prev
        shifts = []
        for layer in range(self.base.config.num_layers):
            b_LN1 = self.param("b_LN1", layer)
            b_v = self.param("b_v", layer) + self.apply("v", layer, prev)
            b_q = self.param("b_q", layer) + self.apply("q", layer, prev)
            b_m1 = self.param("b_m1", layer) + self.apply("m1", layer, b_v) + prev
            b_m2 = self.param("b_m2", layer) + self.apply("m2", layer, b_LN1)
            b_m3 = self.param("b_m3", layer) + b_LN1
            shifts.append(torch.cat([b_q, b_m1, b_m3, b_m2]))
            prev = self.param("b_LN2", layer)
        g_LN0, gain = self.gains()
        return Row(torch.stack(shifts), g_LN0, gain, self.lora(), self.head(pooling, prev))

    def gains(self) -> tuple[Tensor | None, Tensor | None]:
        gains = [parameter.name for parameter in self.base.anatomy.parameters if parameter.symbol[0] == "g"]
        if not any(f"delta.{name}" in self.tensors for name in gains):
            return None, None
        layers = range(self.base.config.num_layers)
        gain = [torch.stack([self.param("g_LN1", layer), self.param("g_LN2", layer)]) for layer in layers]
        return self.param("g_LN0"), torch.stack(gain)

    def lora(self) -> dict[tuple[int, str], LowRank]:
        out = {}
        for layer in range(self.base.config.num_layers):
            for site, parts in SITES.items():
                joined = self.join(layer, parts)
                if joined is not None:
                    out[layer, site] = joined
        return out

    def join(self, layer: int, parts: Sequence[str]) -> LowRank | None:
        """The low-rank differences of the maps that one product computes, as one: A stacked, B block by block."""
        found = [self.low_rank(part, layer) for part in parts]
        if not any(found):
            return None
        # A map without a difference contributes an empty block, which keeps the rows of the others in place.
        empty = torch.zeros(self.base.config.hidden_size, 0, device=self.base.device)
        A = torch.cat([pair[0] for pair in found if pair is not None])
        B: Tensor = torch.block_diag(  # type: ignore[no-untyped-call]
            *(empty if pair is None else pair[1] for pair in found)
        )
        return A, B

    def head(self, pooling: str, prev: Tensor) -> Head | None:
        """The head with the last LayerNorm's bias moved into the first map that reads the pooled vector."""
        if "head.weight" not in self.tensors:
            return None
        maps = []
        if pooling == "pooler":
            maps.append((self.base.param("W_p"), self.param("b_p")))
        if "head.dense.weight" in self.tensors:
            maps.append((self.tensors["head.dense.weight"], self.tensors["head.dense.bias"]))
        maps.append((self.tensors["head.weight"], self.tensors["head.bias"]))
        first_weight, first_bias = maps[0]
        maps[0] = first_weight, first_bias + first_weight @ prev
        weight, bias = maps.pop()
        return Head(pooling, tuple(maps), weight, bias)


def stack_rows(base: Base, rows: Sequence[Row]) -> Rows:
    """Rows for one `encode`, in the compute dtype; differentiable in every row."""
    base_g_LN0, base_gain = base_gains(base)
    gains = [(row.g_LN0, row.gain) for row in rows if row.g_LN0 is not None and row.gain is not None]
    gain_of_row: list[int] = []
    for row in rows:
        gain_of_row.append(0 if row.gain is None else 1 + max(gain_of_row, default=0))
    return Rows(
        shift=torch.stack([row.shift for row in rows]).to(base.dtype),
        g_LN0=torch.stack([base_g_LN0, *(g_LN0 for g_LN0, _ in gains)]).to(base.dtype),
        gain=torch.stack([base_gain, *(gain for _, gain in gains)]).to(base.dtype),
        gain_of_row=gain_of_row,
        lora=[cast_lora(row, base.dtype) for row in rows],
        heads=[row.head for row in rows],
    )


def parts_at(row: Row, bare: Row) -> int:
    """The lowest layer that computes something else than it does on the bare base; the number of layers if none does.

    Folding is the same sequence of operations for every row, so what does not differ is equal bit for bit.
    """
    if row.gain is not None:
        return 0
    changed = (row.shift != bare.shift).any(dim=1).tolist()
    low_rank = {layer for layer, _ in row.lora}
    return next((layer for layer, differs in enumerate(changed) if differs or layer in low_rank), len(changed))


def base_gains(base: Base) -> tuple[Tensor, Tensor]:
    """The base's own LayerNorm gains in the layout of `Rows`: [e] and [layers, 2, h], float32."""
    layers = range(base.config.num_layers)
    gain = [torch.stack([base.param("g_LN1", layer), base.param("g_LN2", layer)]) for layer in layers]
    return base.param("g_LN0"), torch.stack(gain)


def cast_lora(row: Row, dtype: torch.dtype) -> dict[tuple[int, str], LowRank]:
    """A row's low-rank differences in the compute dtype."""
    return {key: (A.to(dtype), B.to(dtype)) for key, (A, B) in row.lora.items()}
