"""A family of encoders: names of modules and configuration values, and the kinds of its layers and scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onebert_store.file.manifest import Activation


@dataclass(frozen=True)
class ClassHead:
    """The head of a class of transformers for a task: a linear map, perhaps behind a layer.

    Attributes:
        linear: module of the last map.
        dense: module of the layer's map; None without a layer.
        bias: whether the layer's map has one.
        norm: module of the LayerNorm behind the activation; None without one.
        pooling: of a sequence class, unless config.json has another one.
        pooling_key: key of config.json for the pooling.
        poolings: ours for values of this key with other names.
        activation_key: key of config.json for the activation.
    """

    linear: str
    dense: str | None = None
    activation: Activation = "tanh"
    bias: bool = True
    norm: str | None = None
    pooling: str = "cls"
    pooling_key: str | None = None
    poolings: Mapping[str, str] = field(default_factory=dict)
    activation_key: str | None = None


@dataclass(frozen=True)
class Family:
    """Names of modules and configuration values in one architecture; a new one needs one entry in `FAMILIES`.

    Attributes:
        prefix: precedes every encoder parameter in checkpoints with a head.
        layer: path of a layer, with `{}` for its index.
        parts: part of a layer -> its module path inside the layer.
        outside: part outside the layers -> its module path; `type`, `e`, `p` and `r` are optional.
        positions_after_padding: positions start after the padding id (RoBERTa), not at 0.
        drops_attention_output: training applies dropout to the attention sublayer's output (all but DistilBERT).
        config: our name -> the architecture's name of a configuration value.
        heads: its classes' for a `sequence`, `token` or `span` task; the last two have BERT's by default.
        block: the kind of its layers, a key of `BLOCKS` (blocks/block.py).
        scores: the scores of its attention, a key of `SCORES` (blocks/scores.py).
        renamed: (old, new) pieces of tensor names in checkpoints, replaced in this order.
        fused: module of a layer in checkpoints -> the parts whose maps it holds, one below the other.
        unbiased: parts without a bias in checkpoints; the base's is zero, and a delta may change it.
        first_lacks: LayerNorms that layer 0 does not have.
        reads: further keys of config.json.
        fixed: key of config.json -> the values that are supported, None for a missing one.
        centered: LayerNorms subtract the mean; else they are RMSNorms.
    """

    prefix: str
    layer: str
    parts: Mapping[str, str]
    outside: Mapping[str, str]
    positions_after_padding: bool
    drops_attention_output: bool
    config: Mapping[str, str]
    heads: Mapping[str, ClassHead] = field(default_factory=dict)
    block: str = "post_norm"
    scores: str = "none"
    renamed: Sequence[tuple[str, str]] = (
        # The first BERT checkpoints have gamma and beta.
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("LayerNorm.beta", "LayerNorm.bias"),
    )
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unbiased: Sequence[str] = ()
    first_lacks: Sequence[str] = ()
    reads: Sequence[str] = ()
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    centered: bool = True
