"""Maps Hugging Face parameter names to the symbols of the papers, for one base.

The symbols are BitFit's (Ben Zaken et al. 2022, equations 1 to 5): in each layer the attention maps `q k v`, its output
`m1`, the LayerNorm after it `LN1`, the two maps of the MLP `m2 m3`, and the LayerNorm after them `LN2`. The papers do
not name `LN0` (the LayerNorm of the embeddings), `e` (ELECTRA's projection behind it), `p` (the pooler), `r` (MPNet's
relative positions), `d` (DeBERTa's) and `LNd` (the LayerNorm of `d`). In a pre-norm layer `LN1` stands in front of the
attention and `LN2` in front of the MLP; `LNf` is behind the last layer. In a gated MLP the output of `mg` multiplies
the activation of `m2` (Shazeer 2020: V and W of GEGLU).

A linear map X has `W_X` and `b_X`, a LayerNorm has `g_X` and, unless it is in a pre-norm layer, `b_X`, a table `t_X`.
Biases that checkpoints lack are zero in the base, and a delta may change them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from onebert_encoder.base.family import Family
from onebert_encoder.blocks.block import BLOCKS, Block
from onebert_store.file.delta import PLACES, POOLER_SYMBOL

# The parts of the layers of every block, by which methods name what they train.
NORMS = tuple(dict.fromkeys(chain.from_iterable(block.norms for block in BLOCKS.values())))
LINEAR = tuple(dict.fromkeys(part for block in BLOCKS.values() for part in chain(*block.products.values())))


# The symbols above the last layer.
ABOVE = ("b_LNf", "g_LNf", POOLER_SYMBOL)


@dataclass(frozen=True)
class Parameter:
    """A bias, gain or table that a delta may add to; outside the layers `layer` is None; not `stored`: zeros."""

    name: str
    symbol: str
    layer: int | None
    shape: tuple[int, ...]
    stored: bool = True


@dataclass(frozen=True)
class Module:
    """A linear map of a layer whose weight a low-rank difference may change; `shape` is (out, in)."""

    name: str
    symbol: str
    layer: int
    shape: tuple[int, int]


@dataclass(frozen=True)
class Anatomy:
    """One base's parts by symbol; `relative` is the shape of `t_r`, (buckets, heads); `t_d` has twice the buckets."""

    family: Family
    num_layers: int
    hidden_size: int
    embedding_size: int
    intermediate_size: int
    has_pooler: bool
    relative: tuple[int, int] = (0, 0)

    @property
    def block(self) -> Block:
        return BLOCKS[self.family.block]

    @property
    def has_projection(self) -> bool:
        return "e" in self.family.outside and self.embedding_size != self.hidden_size

    def path(self, part: str, layer: int | None = None) -> str:
        """Module path of a part: `path("q", 3)`, `path("LN0")`, `path("p")`."""
        if layer is not None:
            return self.family.layer.format(layer) + self.family.parts[part]
        return self.family.outside[part]

    def name(self, symbol: str, layer: int | None = None) -> str:
        """Hugging Face parameter name of a symbol: `name("b_q", 3)`, `name("g_LN0")`."""
        kind, part = symbol.split("_", 1)
        return self.path(part, layer) + (".bias" if kind == "b" else ".weight")

    @cached_property
    def of_layer(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter of a layer, by symbol."""
        return dict(self.block.shapes(self.hidden_size, self.intermediate_size))

    @cached_property
    def places(self) -> dict[str, int]:
        """The places of `PLACES` in a layer, with the number of scales at each."""
        return {
            place: self.of_layer[symbol][side] for place, (_, symbol, side) in PLACES.items() if symbol in self.of_layer
        }

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        maps = {symbol: (shape[0], shape[1]) for symbol, shape in self.of_layer.items() if symbol[0] == "W"}
        return tuple(
            Module(self.path(symbol.removeprefix("W_"), layer), symbol, layer, shape)
            for layer in range(self.num_layers)
            for symbol, shape in maps.items()
        )

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        e, h = (self.embedding_size,), (self.hidden_size,)
        shapes = {symbol: shape for symbol, shape in self.of_layer.items() if symbol[0] != "W"}
        parameters: list[tuple[str, int | None, tuple[int, ...]]] = []
        if "LN0" in self.family.outside:
            # Nothing folds a bias that the stream of a pre-norm encoder carries through all layers.
            parameters += [("b_LN0", None, e)] * (not self.has_final_norm) + [("g_LN0", None, e)]
        parameters += [("b_e", None, h)] * self.has_projection
        parameters += [(symbol, layer, shape) for layer in range(self.num_layers) for symbol, shape in shapes.items()]
        parameters += [("b_LNf", None, h), ("g_LNf", None, h)] * self.has_final_norm
        parameters += [("b_p", None, h)] * self.has_pooler
        parameters += [("t_r", None, self.relative)] * ("r" in self.family.outside)
        unbiased = {f"b_{part}" for part in self.family.unbiased}
        return tuple(
            Parameter(self.name(symbol, layer), symbol, layer, shape, symbol not in unbiased)
            for symbol, layer, shape in parameters
            if not self.lacks(symbol, layer)
        )

    @property
    def has_final_norm(self) -> bool:
        return "LNf" in self.family.outside

    def lacks(self, symbol: str, layer: int | None) -> bool:
        """Whether a layer lacks a LayerNorm that the others have."""
        return layer == 0 and symbol.partition("_")[2] in self.family.first_lacks

    @cached_property
    def constants(self) -> Mapping[str, tuple[float, tuple[int, ...]]]:
        """Value and shape of every parameter without a tensor in checkpoints: biases, and gains that nothing reads."""
        gains = {self.name(f"g_{norm}", 0): (1.0, self.of_layer[f"g_{norm}"]) for norm in self.family.first_lacks}
        return gains | {parameter.name: (0.0, parameter.shape) for parameter in self.parameters if not parameter.stored}

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of all tensors of a checkpoint, with fused maps split."""
        return tuple(self.shapes(0, 0, 0))

    def shapes(self, vocab_size: int, max_positions: int, type_vocab_size: int) -> dict[str, tuple[int, ...]]:
        e, h = self.embedding_size, self.hidden_size
        tables = {
            **{"word": (vocab_size, e), "position": (max_positions, e), "type": (type_vocab_size, e)},
            "d": (2 * self.relative[0], h),
        }
        # The maps of queries and keys read these, so a delta that changed them would change whole tables of each layer.
        norm = {self.name(f"{kind}_LNd"): (h,) for kind in "gb"} if "LNd" in self.family.outside else {}
        projection = {self.name("W_e"): (h, e)} if self.has_projection else {}
        pooler = {self.name("W_p"): (h, h)} if self.has_pooler else {}
        return {
            **{f"{self.path(key)}.weight": shape for key, shape in tables.items() if key in self.family.outside},
            **norm,
            **projection,
            **pooler,
            **{parameter.name: parameter.shape for parameter in self.parameters if parameter.stored},
            **{f"{module.name}.weight": module.shape for module in self.modules},
        }
