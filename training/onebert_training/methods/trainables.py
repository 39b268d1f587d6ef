"""The kinds of trained differences: their start values, and the delta file's tensors from their leaves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onebert_encoder.base.anatomy import Module, Parameter
from onebert_store.file import delta

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Trainable:
    """One kind of difference on some sites of the base; no two trainables of a plan make the same tensor.

    By default the leaves are zero at the start, and the delta file's tensors as they are.

    Attributes:
        changes_base: whether steps compute on a base with other weights, `changed`, which `fold` does not read.
        servable: whether the difference can be a delta.
        averages: whether the mean of the leaves over some steps is a difference of the same kind.
    """

    sites: tuple[Any, ...]  # parameters or modules
    changes_base: ClassVar[bool] = False
    servable: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    @property
    def prefix(self) -> str:
        raise NotImplementedError

    def shapes(self, site: Any) -> Mapping[str, tuple[int, ...]]:
        """The shapes of a site's leaves, by their names."""
        raise NotImplementedError

    @property
    def _leaves(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for site in self.sites for name, shape in self.shapes(site).items()}

    @property
    def num_parameters(self) -> int:
        return sum(map(math.prod, self._leaves.values()))

    @property
    def num_trained(self) -> int:
        return self.num_parameters

    @property
    def num_bytes(self) -> int:
        return 4 * self.num_parameters

    def init(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        """The values at the start, on the CPU: float32 leaves, and int64 constants if indices are drawn."""
        return {name: torch.zeros(shape) for name, shape in self._leaves.items()}

    def tensors(self, values: Mapping[str, Tensor]) -> Tensors:
        """The delta file's tensors, from leaves and constants; differentiable."""
        return {name: values[name] for name in self._leaves}

    def changed(self, params: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensors:
        """The changed parameters of the base by name, with a step's noise; differentiable."""
        return {}

    def penalty(self, values: Mapping[str, Tensor]) -> Tensor | float:
        return 0.0

    def advance(self, step: int, steps: int, values: Mapping[str, Tensor]) -> None:
        """Called before and after every step with the number of steps done; may change values in place."""


@dataclass(frozen=True)
class Differences(Trainable):
    """A difference for every number of some biases and gains; `from_zero`: the parameter starts at zero."""

    from_zero: bool = False
    prefix: ClassVar[str] = delta.DELTA

    def shapes(self, site: Parameter) -> Mapping[str, tuple[int, ...]]:
        return {f"{delta.DELTA}{site.name}": site.shape}

    def init(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        if self.from_zero:
            return {f"{delta.DELTA}{site.name}": -params[site.name].cpu() for site in self.sites}
        return super().init(params, generator)


@dataclass(frozen=True)
class RandomBiases(Trainable):
    """A difference for `count` numbers, drawn uniformly among all numbers of some vectors."""

    count: int
    prefix: ClassVar[str] = delta.DELTA

    @property
    def num_parameters(self) -> int:
        return self.count

    def init(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        """Zeros at drawn indices; a vector without a drawn index has no leaf."""
        values: Tensors = {}
        drawn = draw_indices([site.shape[0] for site in self.sites], self.count, numpy_generator(generator))
        for site, indices in zip(self.sites, drawn, strict=True):
            if len(indices):
                values[f"index.{site.name}"] = torch.from_numpy(indices)
                values[f"random.{site.name}"] = torch.zeros(len(indices))
        return values

    def tensors(self, values: Mapping[str, Tensor]) -> Tensors:
        out: Tensors = {}
        for site in self.sites:
            if (leaf := values.get(f"random.{site.name}")) is not None:
                indices = values[f"index.{site.name}"]
                out[f"{delta.DELTA}{site.name}"] = leaf.new_zeros(site.shape).index_copy(0, indices, leaf)
        return out


@dataclass(frozen=True)
class LowRankDifferences(Trainable):
    """A difference BA of rank `rank` for some linear maps, times `scale` (Hu et al. 2022: alpha / r)."""

    rank: int
    scale: float
    prefix: ClassVar[str] = delta.LORA_A

    def shapes(self, site: Module) -> Mapping[str, tuple[int, ...]]:
        out, into = site.shape
        return {f"{delta.LORA_A}{site.name}": (self.rank, into), f"{delta.LORA_B}{site.name}": (out, self.rank)}

    def init(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        """LoRA's own start: A Kaiming uniform with a = sqrt(5), B zero."""
        values = super().init(params, generator)
        for site in self.sites:
            bound = 1 / math.sqrt(site.shape[1])
            values[f"{delta.LORA_A}{site.name}"].uniform_(-bound, bound, generator=generator)
        return values

    def tensors(self, values: Mapping[str, Tensor]) -> Tensors:
        tensors = super().tensors(values)
        return tensors | {
            name: tensor * self.scale for name, tensor in tensors.items() if name.startswith(delta.LORA_B)
        }


Lines = Literal["entries", "rows", "columns"]


@dataclass(frozen=True)
class RandomWeights(Trainable):
    """Differences at random indices of the linear maps: single entries, whole rows or whole columns.

    Rows and columns, called lines here, have one of two lengths, h and f. Each length gets a part of the budget in
    proportion to its entries, and lines of one length are drawn uniformly: the number of trained numbers does not
    depend on the draw. Whole lines train the number nearest to the budget.
    """

    lines: Lines
    budget: int
    prefix: ClassVar[str] = delta.SPARSE_VALUE

    @property
    def num_parameters(self) -> int:
        return sum(length * self._count(sites) for length, sites in self._groups().items())

    @property
    def num_bytes(self) -> int:
        return 8 * self.num_parameters  # with the index of each number

    def init(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        """Zeros at drawn indices, which increase strictly; a map without a drawn index has no leaf."""
        rng, values = numpy_generator(generator), Tensors()
        for sites in self._groups().values():
            drawn = draw_indices([self._lines(site) for site in sites], self._count(sites), rng)
            for site, lines in zip(sites, drawn, strict=True):
                if len(lines):
                    indices = self._indices(site, lines)
                    values[f"{delta.SPARSE_INDEX}{site.name}"] = torch.from_numpy(indices)
                    values[f"{delta.SPARSE_VALUE}{site.name}"] = torch.zeros(len(indices))
        return values

    def tensors(self, values: Mapping[str, Tensor]) -> Tensors:
        names = [f"{prefix}{site.name}" for site in self.sites for prefix in (delta.SPARSE_INDEX, delta.SPARSE_VALUE)]
        return {name: values[name] for name in names if name in values}

    def _groups(self) -> dict[int, list[Module]]:
        groups: dict[int, list[Module]] = {}
        for site in self.sites:
            groups.setdefault(math.prod(site.shape) // self._lines(site), []).append(site)
        return groups

    def _lines(self, site: Module) -> int:
        return {"entries": math.prod(site.shape), "rows": site.shape[0], "columns": site.shape[1]}[self.lines]

    def _count(self, sites: Iterable[Module]) -> int:
        entries: int = sum(math.prod(site.shape) for site in self.sites)
        return round(self.budget * sum(map(self._lines, sites)) / entries)

    def _indices(self, site: Module, lines: NDArray[np.int64]) -> NDArray[np.int64]:
        out, into = site.shape
        if self.lines == "entries":
            return lines
        if self.lines == "rows":
            return (lines[:, None] * into + np.arange(into)).ravel()
        return (np.arange(out)[:, None] * into + lines).ravel()


@dataclass(frozen=True)
class Cores(Trainable):
    """A difference U Σ R Vᵀ for some linear maps; only R [rank, rank] is trained (LoRA-XS, Bałazy et al. 2024).

    U Σ and Vᵀ are the base's `subspaces`. R starts at zero, where its gradient is not zero; the paper draws R with a
    deviation of 1e-5.
    """

    rank: int
    prefix: ClassVar[str] = delta.LORA_XS

    def shapes(self, site: Module) -> Mapping[str, tuple[int, ...]]:
        return {f"{delta.LORA_XS}{site.name}": (self.rank, self.rank)}


@dataclass(frozen=True)
class Adapters(Trainable):
    """A Houlsby adapter of `size` units behind some linear maps (Houlsby et al. 2019, section 2.1)."""

    size: int
    prefix: ClassVar[str] = delta.ADAPTER_DOWN

    def shapes(self, site: Module) -> Mapping[str, tuple[int, ...]]:
        down, up, h = f"{delta.ADAPTER_DOWN}{site.name}", f"{delta.ADAPTER_UP}{site.name}", site.shape[0]
        into = {f"{down}.weight": (self.size, h), f"{down}.bias": (self.size,)}
        return into | {f"{up}.weight": (h, self.size), f"{up}.bias": (h,)}

    def init(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        """The first map: normal with deviation 0.01, cut at two deviations, as in the paper; the second map: zero."""
        values = super().init(params, generator)
        for site in self.sites:
            down = values[f"{delta.ADAPTER_DOWN}{site.name}.weight"]
            torch.nn.init.trunc_normal_(down, std=0.01, a=-0.02, b=0.02, generator=generator)
        return values


@dataclass(frozen=True)
class Scales(Trainable):
    """A factor for every number at one of `PLACES`, on the maps `sites` (IA3, Liu et al. 2022)."""

    place: str

    @property
    def prefix(self) -> str:
        return delta.PLACES[self.place][0]

    def shapes(self, site: Module) -> Mapping[str, tuple[int, ...]]:
        return {f"{self.prefix}{site.name}": (site.shape[delta.PLACES[self.place][2]],)}

    def init(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        return {name: torch.ones_like(zeros) for name, zeros in super().init(params, generator).items()}


def numpy_generator(generator: torch.Generator) -> np.random.Generator:
    """A NumPy generator seeded from PyTorch's: only NumPy draws a few of many indices without listing them all."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))


def draw_indices(sizes: Sequence[int], count: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Draws `count` indices uniformly, without repetition, from all vectors of these sizes; sorted, by vector."""
    counts = rng.multivariate_hypergeometric(sizes, count, method="marginals")
    drawn = (rng.choice(size, n, replace=False, shuffle=False) for size, n in zip(sizes, counts, strict=True))
    return [np.sort(indices).astype(np.int64) for indices in drawn]
