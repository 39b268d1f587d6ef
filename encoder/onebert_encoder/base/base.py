"""The frozen base: weights on the compute device, tokenizer and digest."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.base.anatomy import Anatomy
from onebert_encoder.base.config import TANH, EncoderConfig, family_with, library_config, read_config
from onebert_encoder.base.digest import base_digest
from onebert_encoder.base.folder import WEIGHTS, own_tokenizer, read_own
from onebert_encoder.base.params import Params
from onebert_encoder.base.sentence import Vectors, read_vectors
from onebert_encoder.base.source import DEFAULT_BASE, MOST_BYTES, find_base, read_json, read_parameters
from onebert_encoder.base.subspaces import Subspaces
from onebert_encoder.blocks.running import LayerWeights
from onebert_encoder.blocks.scores import scores_of
from onebert_encoder.compute.linear import Int8Linear, PackedLinear, make_linear
from onebert_encoder.compute.plain import Linear
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_store.errors import MalformedFile, UnsupportedBase
from onebert_store.file.manifest import SIAMESE
from onebert_store.spec import BaseSpec

__all__ = ["DEFAULT_BASE", "Base", "load_base"]


# Vocabulary files; a folder with a tokenizer has at least one of them.
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "spm.model")
TOKENIZER_FILES = (
    *VOCABULARIES,
    *("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)

# A tokenizer without a limit has a number like 1e30.
_NO_LIMIT = 1 << 20


@dataclass(frozen=True)
class EmbeddingWeights:
    """The weights below the first layer; V is the size of the vocabulary, e the width of the embeddings.

    Attributes:
        word: [V, e]; float32 when trained, so that no step casts the whole table.
        position: [types * positions, e], position plus segment embedding; [0, e] without both.
        g_LN0: [e]; [0] without a LayerNorm.
        no_bias: [1, e] zeros, the embedding LayerNorm's bias: `fold` has moved the real one into the first layer.
    """

    word: Tensor
    position: Tensor
    no_bias: Tensor
    g_LN0: Tensor
    W_e: Linear | None


@dataclass(eq=False, repr=False)
class Base:
    """One encoder in memory, shared by every task.

    Attributes:
        params: float32 parameters by Hugging Face name without prefix; see Params.
        precision: dtype of the matrix products.
        dtype: dtype of everything else: `precision`, or bfloat16 with int8 products.
        batch_invariant: a text gets the same bits alone and in every batch; for answering, not for training.
        subspaces: singular directions of the loaded weights; `with_params` does not change them.
        vectors: how it makes the vector of a text, or why it does not.
    """

    spec: BaseSpec
    config: EncoderConfig
    anatomy: Anatomy
    params: Params
    tokenizer: Tokenizer
    precision: torch.dtype
    device: torch.device
    subspaces: Subspaces
    vectors: Vectors | str
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        self.dtype = torch.bfloat16 if self.precision == torch.int8 else self.precision
        self.params.move(self.device)
        name = self.config.activation
        self.activation = partial(F.gelu, approximate="tanh") if name in TANH else getattr(F, name)
        self.embeddings = self._embeddings()
        self.layers = [self._layer(layer) for layer in range(self.config.num_layers)]

    def with_params(self, changed: dict[str, Tensor]) -> "Base":
        """The same encoder with some parameters replaced; gradients flow to the ones that require them.

        A delta that is trained on the changed encoder fits no other base, although `spec` stays the same. int8 products
        have no gradient and become bfloat16.
        """
        return replace(self, params=self.params | changed, precision=self.dtype)

    def in_dtype(self, dtype: torch.dtype) -> "Base":
        return self if dtype == self.precision else replace(self, params=self.params | {}, precision=dtype)

    def with_batch_invariance(self) -> "Base":
        """The same base, giving a text the same bits in every batch; packed weights do so, and are shared."""
        if not self._is_packed():
            return replace(self, batch_invariant=True)
        same = copy(self)
        same.batch_invariant = True
        return same

    def _is_packed(self) -> bool:
        linears = [*(linear for layer in self.layers for linear in layer.W.values()), self.embeddings.W_e]
        return all(linear is None or isinstance(linear, PackedLinear) for linear in linears)

    @property
    def dtype_name(self) -> str:
        return str(self.precision).removeprefix("torch.")

    def param(self, symbol: str, layer: int | None = None) -> Tensor:
        return self.params[self.anatomy.name(symbol, layer)]

    def _table(self, part: str) -> Tensor:
        return self.params[f"{self.anatomy.path(part)}.weight"]

    def _linear(self, *parts: str, layer: int | None) -> Linear:
        if self.precision == torch.int8:
            return Int8Linear(self._weight(parts, layer))
        return make_linear(lambda: self._weight(parts, layer).to(self.dtype), self.batch_invariant)

    def _weight(self, parts: Sequence[str], layer: int | None) -> Tensor:
        weights = [self.param(f"W_{part}", layer) for part in parts]
        # A single float32 weight is not copied: it stays the tensor that `params` holds.
        return weights[0] if len(weights) == 1 else torch.cat(weights)

    def _layer(self, layer: int) -> LayerWeights:
        block, scores = self.anatomy.block, scores_of(self.anatomy.family.scores)
        weights = LayerWeights(
            W={site: self._linear(*parts, layer=layer) for site, parts in block.products.items()},
            g={norm: self.param(f"g_{norm}", layer).to(self.dtype) for norm in block.norms},
            scores=scores.make(self.config, self.param, layer),
            identities=self.anatomy.family.first_lacks if layer == 0 else (),
        )
        for site, parts in block.products.items():
            self._release([self.anatomy.name(f"W_{part}", layer) for part in parts], weights.W[site])
        return weights

    def _release(self, names: Sequence[str], linear: Linear) -> None:
        """Gives back weights that a product has packed, if it holds them as exactly: never are all in memory twice."""
        if isinstance(linear, PackedLinear) and self.precision == torch.float32:
            for index, name in enumerate(names):
                self.params.release(name, partial(linear.unpacked, index, len(names)))

    def _embeddings(self) -> EmbeddingWeights:
        word, outside = self._table("word"), self.anatomy.family.outside
        tables = [self._table(part) for part in ("type", "position") if part in outside]
        position = tables[-1] if tables else word[:0]
        if len(tables) == 2:
            position = (tables[0][:, None] + tables[1]).flatten(0, 1)
        return EmbeddingWeights(
            word=word if torch.is_grad_enabled() and word.requires_grad else word.to(self.dtype),
            position=position.to(self.dtype),
            no_bias=word.new_zeros(1, word.shape[1], dtype=self.dtype),
            g_LN0=self.param("g_LN0").to(self.dtype) if "LN0" in outside else word.new_zeros(0),
            W_e=self._linear("e", layer=None) if self.anatomy.has_projection else None,
        )


def load_base(
    name: str | None = None, *, dtype: torch.dtype = torch.float32, device: str = "cpu", batch_invariant: bool = False
) -> Base:
    """Loads an added base, or one of a local folder, the Hugging Face cache or the Hub; None is the default base.

    Args:
        dtype: float32, bfloat16 or int8; `fold` always works in float32. int8 runs bfloat16 around 8-bit matrix
            products, on a CPU and for answering only.
        batch_invariant: give a text the same bits alone and in every batch.

    Raises:
        BaseNotFound: no such folder, and the Hub and its cache do not have the id.
        UnsupportedBase: another architecture, no safetensors weights, or incomplete weights.
        InvalidSettings: int8 without the fast CPU kernels.
    """
    name = name or DEFAULT_BASE
    folder = find_base(name)
    try:
        name_kept = folder.resolve().name if Path(name).expanduser().is_dir() else name
        return _load(folder, name_kept, dtype, device, batch_invariant)
    except UnsupportedBase as error:
        raise UnsupportedBase(f"base {name}: {error.detail}") from None


def has_tokenizer(folder: Path) -> bool:
    """Whether a model's folder has its own tokenizer."""
    return any((folder / name).is_file() for name in VOCABULARIES)


def read_tokenizer(folder: Path, config: EncoderConfig) -> tuple[Tokenizer, int | None]:
    """A folder's tokenizer and its limit in tokens (None); raises UnsupportedBase if it is missing or unfit."""
    try:
        raw = read_json(folder / "config.json")
    except MalformedFile:
        raw = {}
    has_types = config.type_vocab_size > 1
    return tokenizer_of(folder, lambda: library_config(raw, config.model_type), config.vocab_size, has_types)


def tokenizer_of(
    folder: Path, make_config: Callable[[], Any], vocab_size: int, has_types: bool
) -> tuple[Tokenizer, int | None]:
    """The tokenizer of any model's folder, and its length limit; `make_config` makes transformers' configuration."""
    # Without these files transformers creates a tokenizer without words.
    if not has_tokenizer(folder):
        raise UnsupportedBase(f"it has no tokenizer, none of {', '.join(VOCABULARIES)}")
    for path in (folder / name for name in TOKENIZER_FILES):
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise UnsupportedBase(f"its tokenizer cannot be read: {path.name} has over {MOST_BYTES >> 20} MiB")
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415 - a folder of our own is read without it

        # Without `config` transformers would build a configuration from the whole file.
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), config=make_config(), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a damaged file may raise anything in a third party's parser
        needs_packages = not (folder / "tokenizer.json").is_file() and any(folder.glob("*.model"))
        hint = "; without a tokenizer.json it takes the packages sentencepiece and protobuf" if needs_packages else ""
        raise UnsupportedBase(f"its tokenizer cannot be read: {type(error).__name__}{hint}") from None
    backend, longest = getattr(tokenizer, "backend_tokenizer", None), tokenizer.model_max_length
    if not isinstance(backend, tokenizers.Tokenizer):
        raise UnsupportedBase("it has no fast tokenizer")
    if tokenizer.truncation_side != "right":
        raise UnsupportedBase(
            "its tokenizer cuts the beginnings of long texts (truncation_side), which is not done here"
        )
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if not 0 <= largest < vocab_size:
        raise UnsupportedBase(f"its tokenizer gives ids up to {largest}, its word table has {vocab_size} rows")
    # A tokenizer's configuration may contain any value.
    says = isinstance(longest, int | float) and 3 <= longest < _NO_LIMIT
    return Tokenizer(backend, has_types), int(longest) if says else None


def _load(folder: Path, name: str, dtype: torch.dtype, device: str, batch_invariant: bool) -> Base:
    recorded = read_own(folder)
    config, family = (recorded.config, family_with(recorded.config)) if recorded else read_config(folder)
    tensors = read_parameters(folder, family, recorded.files[WEIGHTS][1] if recorded else None)
    anatomy = Anatomy(
        family=family,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        embedding_size=config.embedding_size,
        intermediate_size=config.intermediate_size,
        has_pooler="p" in family.outside and f"{family.outside['p']}.weight" in tensors,
        relative=(config.relative_buckets, config.num_heads),
    )
    params, on = _checked_params(tensors, anatomy, config), torch.device(device)
    del tensors
    words = own_tokenizer(folder, recorded) if recorded else read_tokenizer(folder, config)[0]
    spec = BaseSpec(
        name=recorded.name if recorded else name,
        digest=recorded.digest if recorded else base_digest(config, words.written, params),
        model_type=config.model_type,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        vocab_size=config.vocab_size,
        max_length=config.max_length,
        num_parameters=sum(tensor.numel() for tensor in params.values()),
        poolings=("cls", "mean", SIAMESE, *(("pooler",) if anatomy.has_pooler else ())),
        parameters={parameter.name: parameter.shape for parameter in anatomy.parameters},
        modules={module.name: module.shape for module in anatomy.modules},
        symbols={
            **{parameter.name: parameter.symbol for parameter in anatomy.parameters},
            **{module.name: module.symbol for module in anatomy.modules},
        },
    )
    # One number in memory each.
    params |= {name: torch.tensor([value]).expand(shape) for name, (value, shape) in anatomy.constants.items()}
    parameters = Params(params)
    del params
    vectors = read_vectors(folder, config.max_length)
    return Base(spec, config, anatomy, parameters, words, dtype, on, Subspaces(parameters), vectors, batch_invariant)


def _checked_params(tensors: Mapping[str, Tensor], anatomy: Anatomy, config: EncoderConfig) -> dict[str, Tensor]:
    missing = [name for name in anatomy.weights if name not in tensors]
    if missing:
        raise UnsupportedBase(f"{len(missing)} parameters are missing, {missing[0]} among them")
    shapes = anatomy.shapes(config.vocab_size, config.max_positions, config.type_vocab_size)
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise UnsupportedBase(f"{name} has shape {list(tensors[name].shape)}, its config.json says {list(shape)}")
    return {name: tensors[name].contiguous() for name in shapes}
