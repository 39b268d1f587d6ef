"""One layer of a base with the tensors of one task, as a block folds it: each W becomes W + BA + U Σ R Vᵀ + S."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from onebert_encoder.compute.plain import Linear
from onebert_encoder.layout.branches import Bottleneck, Branch, Core, Directions, LowRank, Sparse
from onebert_store.file import delta


class FoldedLayer(NamedTuple):
    """A row's layer: `shift` [width], vectors end to end; `branches` by site; `prev` [h], the output's missing bias."""

    shift: Tensor
    branches: Mapping[str, tuple[Branch, ...]]
    prev: Tensor


class Maps:
    """Multiplies a vector by a layer's weights; the maps that a product joins are computed once."""

    def __init__(self, W: Mapping[str, Linear], products: Mapping[str, Sequence[str]]) -> None:
        self._W, self._products = W, products
        self._site = {part: site for site, parts in products.items() for part in parts}
        self._mapped: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}

    def __call__(self, part: str, vector: Tensor) -> Tensor:
        site = self._site[part]
        mapped_vector, out = self._mapped.get(site, (None, {}))
        if mapped_vector is not vector:
            parts = self._products[site]
            out = dict(zip(parts, self._W[site](vector[None].float())[0].chunk(len(parts)), strict=True))
            self._mapped[site] = vector, out
        return out[part]


class LayerFolding:
    """Parameters by symbol, and branches by part.

    Args:
        params: a base's float32 parameters by name.
        tensors: a task's, named as in the delta file.
        name: the name of a symbol in this layer.
        directions: the singular directions of a module (`Subspaces.directions`).
        maps: of this layer in float32; None multiplies by the weights in `params`.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        tensors: Mapping[str, Tensor],
        name: Callable[[str], str],
        directions: Callable[[str, int], Directions],
        maps: Maps | None = None,
    ) -> None:
        self._params, self._tensors, self._name = params, tensors, name
        self._directions, self._maps = directions, maps

    def param(self, symbol: str) -> Tensor:
        """The base's bias or gain plus the task's difference."""
        name = self._name(symbol)
        value, difference = self._params[name], self._tensors.get(delta.DELTA + name)
        return value if difference is None else value + difference

    def difference(self, symbol: str) -> Tensor | None:
        return self._tensors.get(delta.DELTA + self._name(symbol))

    def weight(self, part: str) -> Tensor:
        """The base's own weight [out, in]."""
        return self._params[self._name(f"W_{part}")]

    def scale(self, place: str) -> Tensor | None:
        prefix, symbol, _ = delta.PLACES[place]
        return self._tensor(prefix, symbol.removeprefix("W_"))

    def scaled(self, place: str, bias: Tensor) -> Tensor:
        scale = self.scale(place)
        return bias if scale is None else scale * bias

    def bias(self, part: str, lacks: Tensor | None) -> Tensor:
        """The bias of a map's scaled output; `lacks` is the part of the map's input that folding has removed."""
        bias = self.param(f"b_{part}")
        if lacks is not None:
            bias = bias + self.apply(part, lacks)
        return self.scaled(part, bias) if part in delta.PLACES else bias

    def apply(self, part: str, vector: Tensor) -> Tensor:
        """(W + BA + U Σ R Vᵀ + S) vector, without forming the sum."""
        out = self.weight(part) @ vector if self._maps is None else self._maps(part, vector)
        for branch in self.differences(part):
            out = out + branch(vector[None])[0]
        return out

    def differences(self, part: str) -> list[Branch]:
        """The parts BA, U Σ R Vᵀ and S of the task's difference, without those it lacks."""
        branches = (self._low_rank(part), self._core(part), self._sparse(part))
        return [branch for branch in branches if branch is not None]

    def after(self, part: str, bias: Tensor) -> Tensor:
        """The bias, with the last one of the adapter behind a map."""
        u = self._tensor(delta.ADAPTER_UP, part, ".bias")
        return bias if u is None else bias + u

    def adapters(self, biases: Mapping[str, Tensor]) -> dict[str, tuple[Branch, ...]]:
        """The adapters behind maps, at `after_…`; `biases` are the parts of their inputs that folding has removed."""
        branches: dict[str, tuple[Branch, ...]] = {}
        for part, bias in biases.items():
            if (D := self._tensor(delta.ADAPTER_DOWN, part, ".weight")) is not None:
                c = self._tensors[f"{delta.ADAPTER_DOWN}{self._module(part)}.bias"]
                U = self._tensors[f"{delta.ADAPTER_UP}{self._module(part)}.weight"]
                branches[f"after_{part}"] = (Bottleneck(D, c + D @ bias, U),)
        return branches

    def branches(self, products: Mapping[str, Sequence[str]]) -> dict[str, tuple[Branch, ...]]:
        """The branches at each product's site, joined for the maps that it computes side by side."""
        return {site: joined for site, parts in products.items() if (joined := tuple(self._joined(parts)))}

    def _tensor(self, prefix: str, part: str, suffix: str = "") -> Tensor | None:
        return self._tensors.get(f"{prefix}{self._module(part)}{suffix}")

    def _module(self, part: str) -> str:
        return self._name(f"W_{part}").removesuffix(".weight")

    def _low_rank(self, part: str) -> LowRank | None:
        A = self._tensor(delta.LORA_A, part)
        return None if A is None else LowRank(A, self._tensors[delta.LORA_B + self._module(part)])

    def _core(self, part: str) -> Core | None:
        R = self._tensor(delta.LORA_XS, part)
        return None if R is None else Core(R, self._directions(self._module(part), len(R)))

    def _sparse(self, part: str) -> Sparse | None:
        index = self._tensor(delta.SPARSE_INDEX, part)
        if index is None:
            return None
        out, into = self.weight(part).shape
        values = self._tensors[delta.SPARSE_VALUE + self._module(part)]
        return Sparse(torch.stack([index // into, index % into]), values, (out, into))

    def _joined(self, parts: Sequence[str]) -> Iterator[Branch]:
        low_rank = [self._low_rank(part) for part in parts]
        if any(low_rank):
            yield self._block_diagonal(parts, low_rank)
        # Cores are not joined: rows with other maps can still share the directions of one map.
        for i, part in enumerate(parts):
            if core := self._core(part):
                yield Core(core.R, core.shared.among(i, len(parts)))
        sparse = {i: branch for i, part in enumerate(parts) if (branch := self._sparse(part)) is not None}
        if sparse:
            yield _stacked(sparse, len(parts))

    def _block_diagonal(self, parts: Sequence[str], pairs: Sequence[LowRank | None]) -> LowRank:
        """Joins the low-rank differences of several maps: the As stacked, the Bs as a block-diagonal matrix."""
        A = torch.cat([pair.A for pair in pairs if pair is not None])
        # A map without a difference gets a block of no columns, which keeps the other blocks' rows in place.
        outs = [self.weight(part).new_zeros(len(self.weight(part)), 0) for part in parts]
        blocks = [out if pair is None else pair.B for out, pair in zip(outs, pairs, strict=True)]
        stops = list(accumulate(len(block) for block in blocks))
        reach = [
            (stop - len(block), stop) for block, stop in zip(blocks, stops, strict=True) for _ in range(block.shape[1])
        ]
        return LowRank(A, torch.block_diag(*blocks), torch.tensor(reach) if len(blocks) > 1 else None)


def _stacked(branches: Mapping[int, Sparse], count: int) -> Sparse:
    """Joins the sparse differences of some of `count` equal maps side by side, by their numbers."""
    first = next(iter(branches.values()))
    out, into = first.shape
    # int64, which makes the sums int64 as well: the kernels read no other indices.
    below = torch.arange(1, -1, -1, device=first.indices.device)[:, None]
    indices = torch.cat([branch.indices + i * out * below for i, branch in branches.items()], dim=1)
    return Sparse(indices, torch.cat([branch.values for branch in branches.values()]), (count * out, into))
