"""Reads a base's config.json into one form for every family; imports torch only in `read_config`."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onebert_encoder.base.families import family_of
from onebert_encoder.base.family import Family
from onebert_encoder.base.source import read_json
from onebert_store.errors import MalformedFile, UnsupportedBase
from onebert_store.file.strict_json import printable

# Hugging Face's names of activations.
TANH = ("gelu_new", "gelu_pytorch_tanh")
ACTIVATIONS = ("gelu", *TANH, "relu", "silu")

# Keys of config.json that are read besides each family's sizes.
_USED = "vocab_size max_position_embeddings type_vocab_size pad_token_id layer_norm_eps tokenizer_class".split()

# MPNet's code has this number, whatever its configuration says.
BUCKETS = 32

# Upper bounds of sizes. Layers have a lower one: the names of all their parameters are listed before the weights are
# read, and the names of a billion layers would fill the memory. Positions that no table holds are computed at a start.
MOST_SIZE, MOST_LAYERS, _MOST_POSITIONS = 2**31 - 1, 1000, 2**20


@dataclass(frozen=True)
class EncoderConfig:
    """The configuration values that change the encoder's results, with the same names for every family."""

    model_type: str
    hidden_size: int
    embedding_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    activation: str
    eps: float
    vocab_size: int
    max_positions: int
    type_vocab_size: int
    padding_id: int
    first_position: int
    hidden_dropout: float
    attention_dropout: float
    relative_buckets: int = 0
    # For each layer the base θ of its rotary positions, and the largest distance of tokens that attend to each other, 0
    # for any; empty for other positions.
    rotary: tuple[tuple[float, int], ...] = ()

    @property
    def max_length(self) -> int:
        """Longest sequence, in tokens."""
        return self.max_positions - self.first_position


def read_config(folder: Path) -> tuple[EncoderConfig, Family]:
    """Reads a base's configuration; raises UnsupportedBase if it is unreadable or its architecture is not supported."""
    raw, family = read_raw(folder)
    if find_spec("transformers") is None:
        raise UnsupportedBase("it is read by transformers, which is not installed; `onebert base add` needs it once")
    model_type = str(raw["model_type"])
    try:
        config = _our_config(library_config(raw, model_type), model_type, family)
    except UnsupportedBase:
        raise
    except Exception as error:  # transformers may raise anything; the cause says more than its wrapper
        why = printable(str(error.__cause__ or error), 200)
        raise UnsupportedBase(f"its config.json cannot be read; transformers says: {why}") from None
    check_config(config)
    return config, family_with(config)


def check_config(config: EncoderConfig) -> None:
    """Raises UnsupportedBase for values, each of its type, that make no encoder."""
    sizes = (config.hidden_size, config.embedding_size, config.num_heads, config.intermediate_size, config.vocab_size)
    bounds = [*((size, MOST_SIZE) for size in sizes), (config.num_layers, MOST_LAYERS)]
    if not all(1 <= size <= limit for size, limit in (*bounds, (config.max_positions, _MOST_POSITIONS))):
        raise UnsupportedBase("a size of its configuration is out of bounds")
    scores, buckets = family_of(config.model_type).scores, config.relative_buckets
    width, remainder = divmod(config.hidden_size, config.num_heads)
    turned = [0 < theta < math.inf and window >= 0 for theta, window in config.rotary]
    for holds, why in (
        (
            config.activation in ACTIVATIONS,
            f"its activation {printable(str(config.activation))!r} is not one of {', '.join(ACTIVATIONS)}",
        ),
        (
            scores != "relative" or buckets == BUCKETS,
            f"it has {buckets} buckets of relative positions, not {BUCKETS}",
        ),
        (scores != "disentangled" or buckets > 1, f"it has {buckets} buckets of relative positions, not 2 or more"),
        (not remainder, "its hidden size is not a multiple of its number of heads"),
        (
            0 <= config.first_position < config.max_positions,
            f"its pad_token_id {config.padding_id} leaves no positions for tokens",
        ),
        (0 <= config.eps < math.inf, f"the epsilon of its LayerNorms is {config.eps}"),
        (len(turned) == (config.num_layers if scores == "rotary" else 0), "its rotary positions are not its layers'"),
        (not turned or not width % 2, "its heads have an odd width, and rotary positions turn pairs of numbers"),
        (all(turned), "a base or a window of its rotary positions is out of bounds"),
    ):
        if not holds:
            raise UnsupportedBase(why)


def family_with(config: EncoderConfig) -> Family:
    """The family of a base with this configuration: without segment embeddings if the base has none."""
    family = family_of(config.model_type)
    if "type" in family.outside and not config.type_vocab_size:
        return replace(family, outside={part: path for part, path in family.outside.items() if part != "type"})
    return family


def read_raw(folder: Path) -> tuple[dict[str, Any], Family]:
    """A base's config.json, unchanged; raises UnsupportedBase if it is unreadable or of another architecture."""
    try:
        raw = read_json(folder / "config.json")
    except MalformedFile as error:
        raise UnsupportedBase(error.detail) from None
    if not isinstance(model_type := raw.get("model_type"), str):
        raise UnsupportedBase("it has no readable config.json with a model_type")
    family = family_of(model_type)
    if raw.get("position_embedding_type", "absolute") != "absolute":
        raise UnsupportedBase("it has relative positions; only absolute ones are supported")
    if raw.get("is_decoder"):
        raise UnsupportedBase("it is a decoder, in which a token reads only those before it")
    _check_sizes(raw, family)
    return raw, family


def library_config(raw: Mapping[str, Any], model_type: str, **changes: Any) -> Any:
    """transformers' configuration of a model, from the keys of its config.json that we use alone, and `changes`."""
    from transformers import AutoConfig  # noqa: PLC0415 - imports torch

    family = family_of(model_type)
    used = {*family.config.values(), *family.reads, *family.fixed, *_USED}
    return AutoConfig.for_model(model_type, **{name: raw[name] for name in used & raw.keys()}, **changes)


def _check_sizes(raw: Mapping[str, Any], family: Family) -> None:
    """Rejects sizes that are not whole numbers within bounds; transformers has defaults for missing ones."""
    ours = ("hidden_size", "embedding_size", "num_layers", "num_heads", "intermediate_size")
    sizes = [family.config[size] for size in (*ours, "relative_buckets") if size in family.config]
    limits = {family.config["num_layers"]: MOST_LAYERS, "max_position_embeddings": _MOST_POSITIONS}
    for name in (*sizes, "vocab_size", "max_position_embeddings"):
        size, limit = raw.get(name, 1), limits.get(name, MOST_SIZE)
        if type(size) is not int or not 1 <= size <= limit:
            value = printable(json.dumps(size))
            raise UnsupportedBase(f"{name} in its config.json is not a whole number of 1 to {limit}: {value}")


def _our_config(theirs: Any, model_type: str, family: Family) -> EncoderConfig:
    padding_id = int(getattr(theirs, "pad_token_id", 0) or 0)
    for key, supported in family.fixed.items():
        if (value := getattr(theirs, key, None)) not in supported:
            only = supported[-1]
            raise UnsupportedBase(f"{key} in its config.json is {printable(str(value))}; only {only} is supported")
    heads = theirs.num_attention_heads if family.scores == "rotary" else 1
    if getattr(theirs, "num_key_value_heads", heads) != heads:
        raise UnsupportedBase(
            f"its queries have {heads} heads and its keys {theirs.num_key_value_heads}; "
            "only equal numbers are supported"
        )
    names = {"eps": "layer_norm_eps", **family.config}
    return EncoderConfig(
        model_type=model_type,
        # DistilBERT's code fixes epsilon, at BERT's value.
        eps=float(getattr(theirs, names.pop("eps"), 1e-12)),
        vocab_size=theirs.vocab_size,
        max_positions=theirs.max_position_embeddings,
        type_vocab_size=int(getattr(theirs, "type_vocab_size", 0) or 0) if "type" in family.outside else 0,
        padding_id=padding_id,
        first_position=padding_id + 1 if family.positions_after_padding else 0,
        rotary=_rotary(theirs) if family.scores == "rotary" else (),
        **{key: getattr(theirs, name) for key, name in names.items()},
    )


def _rotary(theirs: Any) -> tuple[tuple[float, int], ...]:
    """`EncoderConfig.rotary`; raises UnsupportedBase for scaled positions."""
    kinds = getattr(theirs, "layer_types", None) or ["full_attention"] * theirs.num_hidden_layers
    rotary = []
    for kind in kinds:
        # One description for all layers, or one for each kind of layer.
        rope = theirs.rope_parameters.get(kind, theirs.rope_parameters)
        if (scaling := rope.get("rope_type", "default")) != "default":
            raise UnsupportedBase(
                f"its rotary positions are scaled ({printable(str(scaling))}); only unscaled ones are supported"
            )
        window = theirs.sliding_window if kind == "sliding_attention" else None
        if window is not None and window < 1:
            raise UnsupportedBase("a token of its local attention reads no other")
        rotary.append((float(rope["rope_theta"]), window or 0))
    return tuple(rotary)
