"""Maps Hugging Face parameter names to the symbols of the papers, for every supported family.

The symbols are BitFit's (Ben Zaken et al. 2022, equations 1 to 5): in each layer the attention maps `q k v`, its output
`m1`, the LayerNorm after it `LN1`, the two maps of the MLP `m2 m3`, and the LayerNorm after them `LN2`. The papers do
not name `LN0` (the LayerNorm of the embeddings), `e` (ELECTRA's projection behind it) and `p` (the pooler).
A linear map X has `W_X` and `b_X`, a LayerNorm has `g_X` and `b_X`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from onebert_store.errors import UnsupportedBase
from onebert_store.file.strict_json import shown

LINEAR = ("q", "k", "v", "m1", "m2", "m3")
NORMS = ("LN1", "LN2")


@dataclass(frozen=True)
class SequenceHead:
    """The head of a `…ForSequenceClassification` class: two linear maps on the first token, `dense` and `linear`."""

    dense: str
    activation: str
    linear: str


@dataclass(frozen=True)
class Family:
    """Names of modules and configuration values in one architecture; a new one needs one entry in `FAMILIES`.

    Attributes:
        prefix: precedes every encoder parameter in checkpoints with a head.
        layer: path of a layer, with `{}` for its index.
        parts: part of a layer -> its module path inside the layer.
        outside: part outside the layers -> its module path; `type`, `e` and `p` are optional.
        positions_after_padding: positions start after the padding id (RoBERTa), not at 0.
        drops_attention_output: training applies dropout to the attention sublayer's output (all but DistilBERT).
        config: our name -> the architecture's name of a configuration value.
    """

    prefix: str
    layer: str
    parts: Mapping[str, str]
    outside: Mapping[str, str]
    positions_after_padding: bool
    drops_attention_output: bool
    config: Mapping[str, str]
    sequence_head: SequenceHead | None = None


_BERT = Family(
    prefix="bert.",
    layer="encoder.layer.{}.",
    parts={
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "m1": "attention.output.dense",
        "LN1": "attention.output.LayerNorm",
        "m2": "intermediate.dense",
        "m3": "output.dense",
        "LN2": "output.LayerNorm",
    },
    outside={
        "word": "embeddings.word_embeddings",
        "position": "embeddings.position_embeddings",
        "type": "embeddings.token_type_embeddings",
        "LN0": "embeddings.LayerNorm",
        "p": "pooler.dense",
    },
    positions_after_padding=False,
    drops_attention_output=True,
    config={
        "hidden_size": "hidden_size",
        "embedding_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "activation": "hidden_act",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    },
    sequence_head=SequenceHead("bert.pooler.dense", "tanh", "classifier"),
)


def _without(parts: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: path for name, path in parts.items() if name not in names}


_ROBERTA = Family(
    **{
        **vars(_BERT),
        "prefix": "roberta.",
        "positions_after_padding": True,
        "sequence_head": SequenceHead("classifier.dense", "tanh", "classifier.out_proj"),
    }
)

FAMILIES: Mapping[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": Family(
        **{
            **vars(_BERT),
            "prefix": "electra.",
            "outside": {**_without(_BERT.outside, "p"), "e": "embeddings_project"},
            "config": {**_BERT.config, "embedding_size": "embedding_size"},
            "sequence_head": SequenceHead("classifier.dense", "gelu", "classifier.out_proj"),
        }
    ),
    "distilbert": Family(
        prefix="distilbert.",
        layer="transformer.layer.{}.",
        parts={
            "q": "attention.q_lin",
            "k": "attention.k_lin",
            "v": "attention.v_lin",
            "m1": "attention.out_lin",
            "LN1": "sa_layer_norm",
            "m2": "ffn.lin1",
            "m3": "ffn.lin2",
            "LN2": "output_layer_norm",
        },
        outside=_without(_BERT.outside, "type", "p"),
        positions_after_padding=False,
        drops_attention_output=False,
        config={
            "hidden_size": "dim",
            "embedding_size": "dim",
            "num_layers": "n_layers",
            "num_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "activation": "activation",
            "hidden_dropout": "dropout",
            "attention_dropout": "attention_dropout",
        },
        sequence_head=SequenceHead("pre_classifier", "relu", "classifier"),
    ),
}


def family_of(model_type: str) -> Family:
    """The entry of `FAMILIES` for a Hugging Face `model_type`; raises UnsupportedBase without one."""
    try:
        return FAMILIES[model_type]
    except KeyError:
        supported = ", ".join(FAMILIES)
        raise UnsupportedBase(f"architecture {shown(model_type)!r} is not supported; supported: {supported}") from None


@dataclass(frozen=True)
class Parameter:
    """A bias or LayerNorm gain that a delta may add to; `layer` is None outside the layers."""

    name: str
    symbol: str
    layer: int | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Module:
    """A linear map of a layer whose weight a low-rank difference may change; `shape` is (out, in)."""

    name: str
    symbol: str
    layer: int
    shape: tuple[int, int]


@dataclass(frozen=True)
class Anatomy:
    """One base's parts by symbol."""

    family: Family
    num_layers: int
    hidden_size: int
    embedding_size: int
    intermediate_size: int
    has_pooler: bool

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
    def modules(self) -> tuple[Module, ...]:
        h, f = self.hidden_size, self.intermediate_size
        shapes = {"m2": (f, h), "m3": (h, f)}
        return tuple(
            Module(self.path(part, layer), f"W_{part}", layer, shapes.get(part, (h, h)))
            for layer in range(self.num_layers)
            for part in LINEAR
        )

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(self._parameters())

    def _parameters(self) -> Iterator[Parameter]:
        h = self.hidden_size
        for symbol in ("b_LN0", "g_LN0"):
            yield Parameter(self.name(symbol), symbol, None, (self.embedding_size,))
        if self.has_projection:
            yield Parameter(self.name("b_e"), "b_e", None, (h,))
        for layer in range(self.num_layers):
            for part in LINEAR:
                size = self.intermediate_size if part == "m2" else h
                yield Parameter(self.name(f"b_{part}", layer), f"b_{part}", layer, (size,))
            for part in NORMS:
                for symbol in (f"b_{part}", f"g_{part}"):
                    yield Parameter(self.name(symbol, layer), symbol, layer, (h,))
        if self.has_pooler:
            yield Parameter(self.name("b_p"), "b_p", None, (h,))

    @property
    def weights(self) -> tuple[str, ...]:
        return tuple(self.shapes(0, 0, 0))

    def shapes(self, vocab_size: int, max_positions: int, type_vocab_size: int) -> dict[str, tuple[int, ...]]:
        e, h = self.embedding_size, self.hidden_size
        tables = {"word": (vocab_size, e), "position": (max_positions, e), "type": (type_vocab_size, e)}
        projection = {self.name("W_e"): (h, e)} if self.has_projection else {}
        pooler = {self.name("W_p"): (h, h)} if self.has_pooler else {}
        return {
            **{f"{self.path(key)}.weight": shape for key, shape in tables.items() if key in self.family.outside},
            **projection,
            **pooler,
            **{parameter.name: parameter.shape for parameter in self.parameters},
            **{f"{module.name}.weight": module.shape for module in self.modules},
        }
