"""Folding: a task's bias differences moved through the network into the few vectors that `encode` adds.

Exact algebra for a post-LayerNorm encoder without dropout (decision 1). Activations
between layers are kept without the bias of the LayerNorm that made them; `prev` is that missing bias. In each layer:

    b_q'  = b_q  + W_q  prev                      the key's bias cancels in the softmax
    β     = b_m1 + W_m1 (b_v + W_v prev)          attention rows sum to 1, so the value's bias passes through
    b_m1' = β + prev
    b_m2' = b_m2 + W_m2 b_LN1
    b_m3' = b_m3 + b_LN1
    prev  = b_LN2                                 the last layer's goes into the head

Every W is W + BA + U Σ R Vᵀ + S where the task has a low-rank difference, one between W's own singular directions, or a
sparse one. A task's scale of a map's output multiplies the map's bias too: b_v + W_v prev, β, b_m2' and the b_m3 in
b_m3'. The bias that an adapter's input lacks (β, b_m3) goes into the adapter's first bias; the adapter's last bias goes
into the row's shift (b_m1', b_m3').
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.layout.branches import Bottleneck, Branch, Core, LowRank, Sparse
from onebert_encoder.maths.rows import Head, Row
from onebert_store.file import delta
from onebert_store.file.manifest import SIAMESE

# The shared matrix products of a layer, to which a task's branches may add, and the maps that each one computes.
SITES: Mapping[str, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "m1": ("m1",), "m2": ("m2",), "m3": ("m3",)}


def to_tensors(task: delta.Delta, base: Base) -> dict[str, Tensor]:
    """A delta's tensors on the base's device, by their names in the file: float32, indices as int64."""
    kinds = {name: "int64" if name.startswith(delta.SPARSE_INDEX) else "float32" for name in task.tensors}
    return {name: torch.from_numpy(task.tensors[name].astype(kind)).to(base.device) for name, kind in kinds.items()}


def fold(base: Base, tensors: Mapping[str, Tensor], pooling: str = "mean") -> Row:
    """Folds one task; differentiable in every tensor, exact up to float32 rounding.

    `tensors` are named as in the delta file; without `head.weight` the row has no head.
    """
    return _Folding(base, tensors).row(pooling)


def expand_cores(base: Base, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replaces `lora_xs.*`, which PEFT lacks, by `lora_A.*` and `lora_B.*`; differentiable."""
    expanded = {name: tensor for name, tensor in tensors.items() if not name.startswith(delta.LORA_XS)}
    for name in tensors.keys() - expanded.keys():
        module, R = name.removeprefix(delta.LORA_XS), tensors[name]
        left, right = base.subspaces.of(module, len(R))
        a, b = delta.LORA_A + module, delta.LORA_B + module
        expanded[a] = torch.cat([expanded[a], right]) if a in expanded else right
        expanded[b] = torch.cat([expanded[b], left @ R], dim=1) if b in expanded else left @ R
    return expanded


class _Folding:
    def __init__(self, base: Base, tensors: Mapping[str, Tensor]) -> None:
        self.base = base
        self.tensors = tensors

    def param(self, symbol: str, layer: int | None = None) -> Tensor:
        name = self.base.anatomy.name(symbol, layer)
        value = self.base.params[name]
        difference = self.tensors.get(delta.DELTA + name)
        return value if difference is None else value + difference

    def low_rank(self, part: str, layer: int) -> LowRank | None:
        path = self.base.anatomy.path(part, layer)
        A = self.tensors.get(delta.LORA_A + path)
        return None if A is None else LowRank(A, self.tensors[delta.LORA_B + path])

    def core(self, part: str, layer: int) -> Core | None:
        path = self.base.anatomy.path(part, layer)
        R = self.tensors.get(delta.LORA_XS + path)
        return None if R is None else Core(R, self.base.subspaces.directions(path, len(R)))

    def sparse(self, part: str, layer: int) -> Sparse | None:
        path = self.base.anatomy.path(part, layer)
        index = self.tensors.get(delta.SPARSE_INDEX + path)
        if index is None:
            return None
        out, into = self.base.param(f"W_{part}", layer).shape
        return Sparse(torch.stack([index // into, index % into]), self.tensors[delta.SPARSE_VALUE + path], (out, into))

    def scale_of(self, place: str, layer: int) -> Tensor | None:
        prefix, symbol, _ = delta.PLACES[place]
        return self.tensors.get(prefix + self.base.anatomy.path(symbol.removeprefix("W_"), layer))

    def scaled(self, part: str, layer: int, bias: Tensor) -> Tensor:
        scale = self.scale_of(part, layer)
        return bias if scale is None else scale * bias

    def apply(self, part: str, layer: int, vector: Tensor) -> Tensor:
        """(W + BA + U Σ R Vᵀ + S) vector, without forming the sum."""
        out = self.base.param(f"W_{part}", layer) @ vector
        for branch in (self.low_rank(part, layer), self.core(part, layer), self.sparse(part, layer)):
            if branch is not None:
                out = out + branch(vector[None])[0]
        return out

    def row(self, pooling: str) -> Row:
        prev = self.param("b_LN0")
        if self.base.anatomy.has_projection:
            prev = self.param("b_e") + self.base.param("W_e") @ prev
        shifts = []
        branches: dict[tuple[int, str], tuple[Branch, ...]] = {}
        for layer in range(self.base.config.num_layers):
            b_LN1 = self.param("b_LN1", layer)
            b_v = self.scaled("v", layer, self.param("b_v", layer) + self.apply("v", layer, prev))
            b_q = self.param("b_q", layer) + self.apply("q", layer, prev)
            b_m1 = self.scaled("m1", layer, self.param("b_m1", layer) + self.apply("m1", layer, b_v))
            b_m2 = self.scaled("m2", layer, self.param("b_m2", layer) + self.apply("m2", layer, b_LN1))
            b_m3 = self.scaled("m3", layer, self.param("b_m3", layer))
            branches |= {(layer, site): found for site in SITES if (found := self.joining(site, layer))}
            for part, bias in (("m1", b_m1), ("m3", b_m3)):
                if adapter := self.adapter(part, layer, bias):
                    branches[layer, f"after_{part}"] = (adapter,)
            shift = [b_q, self.after("m1", layer, b_m1) + prev, self.after("m3", layer, b_m3) + b_LN1, b_m2]
            shifts.append(torch.cat(shift))
            prev = self.param("b_LN2", layer)
        g_LN0, gain = self.gains()
        return Row(torch.stack(shifts), g_LN0, gain, self.scales(), branches, self.head(pooling, prev))

    def gains(self) -> tuple[Tensor | None, Tensor | None]:
        gains = [parameter.name for parameter in self.base.anatomy.parameters if parameter.symbol[0] == "g"]
        if not any(delta.DELTA + name in self.tensors for name in gains):
            return None, None
        layers = range(self.base.config.num_layers)
        gain = [torch.stack([self.param("g_LN1", layer), self.param("g_LN2", layer)]) for layer in layers]
        return self.param("g_LN0"), torch.stack(gain)

    def scales(self) -> dict[str, Tensor]:
        """By place, the scales of all layers; ones for layers without scales."""
        places = {}
        for place, (_, symbol, side) in delta.PLACES.items():
            found = [self.scale_of(place, layer) for layer in range(self.base.config.num_layers)]
            if any(one is not None for one in found):
                ones = torch.ones(self.base.param(symbol, 0).shape[side], device=self.base.device)
                places[place] = torch.stack([ones if one is None else one for one in found])
        return places

    def joining(self, site: str, layer: int) -> tuple[Branch, ...]:
        parts = SITES[site]
        joined = (self.join_low_rank(layer, parts), *self.join_cores(layer, parts), self.join_sparse(layer, parts))
        return tuple(branch for branch in joined if branch is not None)

    def join_low_rank(self, layer: int, parts: Sequence[str]) -> LowRank | None:
        """Joins the low-rank differences of several maps: the As stacked, the Bs as a block-diagonal matrix."""
        found = [self.low_rank(part, layer) for part in parts]
        if not any(found):
            return None
        # A map without a difference gets a block of no columns, which keeps the other blocks' rows in place.
        empty = torch.zeros(self.base.config.hidden_size, 0, device=self.base.device)
        A = torch.cat([pair.A for pair in found if pair is not None])
        blocks = [empty if pair is None else pair.B for pair in found]
        stops = list(accumulate(len(block) for block in blocks))
        reach = [
            (stop - len(block), stop) for block, stop in zip(blocks, stops, strict=True) for _ in range(block.shape[1])
        ]
        return LowRank(A, torch.block_diag(*blocks), torch.tensor(reach) if len(blocks) > 1 else None)

    def join_cores(self, layer: int, parts: Sequence[str]) -> list[Core]:
        """The cores of several maps, not joined: rows with other maps can still share the directions of one map."""
        found = ((i, self.core(part, layer)) for i, part in enumerate(parts))
        return [Core(one.R, one.shared.among(i, len(parts))) for i, one in found if one is not None]

    def join_sparse(self, layer: int, parts: Sequence[str]) -> Sparse | None:
        found = [(i, one) for i, part in enumerate(parts) if (one := self.sparse(part, layer)) is not None]
        if not found:
            return None
        out, into = found[0][1].shape
        below = torch.tensor([[1], [0]], device=self.base.device)
        indices = torch.cat([one.indices + i * out * below for i, one in found], dim=1)
        return Sparse(indices, torch.cat([one.values for _, one in found]), (len(parts) * out, into))

    def adapter(self, part: str, layer: int, bias: Tensor) -> Bottleneck | None:
        """The adapter after a map; `bias` is the part of its input that `fold` has removed."""
        path = self.base.anatomy.path(part, layer)
        D = self.tensors.get(f"{delta.ADAPTER_DOWN}{path}.weight")
        if D is None:
            return None
        c = self.tensors[f"{delta.ADAPTER_DOWN}{path}.bias"]
        return Bottleneck(D, c + D @ bias, self.tensors[f"{delta.ADAPTER_UP}{path}.weight"])

    def after(self, part: str, layer: int, bias: Tensor) -> Tensor:
        u = self.tensors.get(f"{delta.ADAPTER_UP}{self.base.anatomy.path(part, layer)}.bias")
        return bias if u is None else bias + u

    def head(self, pooling: str, prev: Tensor) -> Head | None:
        """The head, with the last LayerNorm's bias `prev` moved into its first map; None for the bare encoder."""
        if delta.HEAD_WEIGHT not in self.tensors:
            return None
        if pooling == SIAMESE:
            # Normalization and absolute differences are not linear, so no bias can be moved through them.
            return Head(pooling, (), self.tensors[delta.HEAD_WEIGHT], self.tensors[delta.HEAD_BIAS], prev)
        maps = []
        if pooling == "pooler":
            maps.append((self.base.param("W_p"), self.param("b_p")))
        if delta.HEAD_DENSE_WEIGHT in self.tensors:
            maps.append((self.tensors[delta.HEAD_DENSE_WEIGHT], self.tensors[delta.HEAD_DENSE_BIAS]))
        maps.append((self.tensors[delta.HEAD_WEIGHT], self.tensors[delta.HEAD_BIAS]))
        first_weight, first_bias = maps[0]
        maps[0] = first_weight, first_bias + first_weight @ prev
        weight, bias = maps.pop()
        return Head(pooling, tuple(maps), weight, bias)
