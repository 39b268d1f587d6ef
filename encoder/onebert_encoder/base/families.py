"""The supported families of encoders: names of modules and configuration values, block and scores. Imports no torch."""

from collections.abc import Mapping
from dataclasses import replace

from onebert_encoder.base.family import ClassHead, Family
from onebert_store.errors import UnsupportedBase
from onebert_store.file.strict_json import printable

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
    heads={"sequence": ClassHead("classifier", "bert.pooler.dense")},
)


def _without(parts: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: path for name, path in parts.items() if name not in names}


_ROBERTA = replace(
    _BERT,
    prefix="roberta.",
    positions_after_padding=True,
    heads={"sequence": ClassHead("classifier.out_proj", "classifier.dense")},
)

_LINEAR = ("q", "k", "v", "m1", "m2", "mg", "m3")
_ROPE = ("rope_parameters", "rope_scaling", "rope_theta")
# A checkpoint's class reads these of its own head.
_CLASSIFIER = ("classifier_pooling", "classifier_activation", "classifier_bias")
# transformers warns where its own defaults are outside a base's vocabulary.
_IDS = tuple(f"{name}_token_id" for name in ("bos", "eos", "cls", "sep", "mask"))

_MODERN_HEAD = ClassHead(
    "classifier", "head.dense", "gelu", bias=False, norm="head.norm", activation_key="classifier_activation"
)
_MODERN = Family(
    prefix="model.",
    layer="layers.{}.",
    parts={
        "LN1": "attn_norm",
        "q": "attn.Wqkv.q",
        "k": "attn.Wqkv.k",
        "v": "attn.Wqkv.v",
        "m1": "attn.Wo",
        "LN2": "mlp_norm",
        "m2": "mlp.Wi.input",
        "mg": "mlp.Wi.gate",
        "m3": "mlp.Wo",
    },
    outside={"word": "embeddings.tok_embeddings", "LN0": "embeddings.norm", "LNf": "final_norm"},
    positions_after_padding=False,
    drops_attention_output=True,
    config={
        **_BERT.config,
        "activation": "hidden_activation",
        "eps": "norm_eps",
        "hidden_dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
    },
    block="gated_pre_norm",
    scores="rotary",
    fused={"attn.Wqkv": ("q", "k", "v"), "mlp.Wi": ("m2", "mg")},
    unbiased=(*_LINEAR, "LNf"),
    first_lacks=("LN1",),
    reads=(
        *("layer_types", "global_attn_every_n_layers", "local_attention"),
        *("global_rope_theta", "local_rope_theta", *_ROPE, *_IDS, *_CLASSIFIER),
    ),
    fixed=dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), (False,)),
    heads={
        "sequence": replace(_MODERN_HEAD, pooling_key="classifier_pooling"),
        **dict.fromkeys(("token", "span"), _MODERN_HEAD),
    },
)

_PROJECTIONS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "m1": "self_attn.o_proj",
    "m2": "mlp.gate_proj",
    "mg": "mlp.up_proj",
    "m3": "mlp.down_proj",
}

# transformers' class names the tensors; checkpoints have the names of the authors' code.
_GTE = replace(
    _BERT,
    prefix="gte.",
    layer="layers.{}.",
    parts={**_PROJECTIONS, "LN1": "post_attention_layernorm", "LN2": "post_mlp_layernorm"},
    outside=_without(_BERT.outside, "position"),
    heads={"sequence": ClassHead("classifier", "gte.pooler.dense")},
    block="gated_post_norm",
    scores="rotary",
    renamed=(
        ("new.", ""),
        ("encoder.layer.", "layers."),
        ("attention.", "self_attn."),
        ("attn_ln", "post_attention_layernorm"),
        ("mlp_ln", "post_mlp_layernorm"),
    ),
    fused={"self_attn.qkv_proj": ("q", "k", "v"), "mlp.up_gate_proj": ("mg", "m2")},
    unbiased=("m2", "mg"),
    reads=_ROPE,
)

_NOMIC = replace(
    _GTE,
    prefix="nomic_bert.",
    heads={"sequence": ClassHead("classifier", "nomic_bert.pooler.dense")},
    renamed=(
        ("encoder.layers.", "layers."),
        ("emb_ln", "embeddings.LayerNorm"),
        (".attn.", ".self_attn."),
        ("out_proj", "o_proj"),
        ("fc11", "up_proj"),
        ("fc12", "gate_proj"),
        ("fc2", "down_proj"),
        ("norm1", "post_attention_layernorm"),
        ("norm2", "post_mlp_layernorm"),
    ),
    fused={"self_attn.Wqkv": ("q", "k", "v")},
    unbiased=_LINEAR,
)

_EURO = replace(
    _MODERN,
    parts={**_PROJECTIONS, "LN1": "input_layernorm", "LN2": "post_attention_layernorm"},
    outside={"word": "embed_tokens", "LNf": "norm"},
    config={
        **_BERT.config,
        "eps": "rms_norm_eps",
        "hidden_dropout": "attention_dropout",
        "attention_dropout": "attention_dropout",
    },
    fused={},
    first_lacks=(),
    reads=("num_key_value_heads", "classifier_pooling", *_ROPE, *_IDS),
    fixed=dict.fromkeys(("attention_bias", "mlp_bias"), (False,)),
    centered=False,
    heads={
        # transformers' own default, `late`, averages the logits of all tokens: no delta's head does.
        "sequence": ClassHead(
            "classifier", "dense", "gelu", pooling="late", pooling_key="classifier_pooling", poolings={"bos": "cls"}
        )
    },
)

FAMILIES: Mapping[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "data2vec-text": replace(_ROBERTA, prefix="data2vec_text."),
    "ernie": replace(
        _BERT,
        prefix="ernie.",
        heads={"sequence": ClassHead("classifier", "ernie.pooler.dense")},
        fixed={"use_task_id": (False,)},
    ),
    "rembert": replace(
        _BERT,
        prefix="rembert.",
        outside={**_BERT.outside, "e": "encoder.embedding_hidden_mapping_in"},
        config={**_BERT.config, "embedding_size": "input_embedding_size"},
        heads={"sequence": ClassHead("classifier", "rembert.pooler.dense")},
    ),
    "deberta-v2": replace(
        _BERT,
        prefix="deberta.",
        parts={
            **_BERT.parts,
            "q": "attention.self.query_proj",
            "k": "attention.self.key_proj",
            "v": "attention.self.value_proj",
        },
        outside={
            **_without(_BERT.outside, "position", "type", "p"),
            "d": "encoder.rel_embeddings",
            "LNd": "encoder.LayerNorm",
        },
        config={**_BERT.config, "relative_buckets": "position_buckets"},
        heads={"sequence": ClassHead("classifier", "pooler.dense", "gelu", activation_key="pooler_hidden_act")},
        reads=("pooler_hidden_act",),
        block="turned_post_norm",
        scores="disentangled",
        # As all checkpoints of v3 and mDeBERTa have them.
        fixed={
            "relative_attention": (True,),
            "share_att_key": (True,),
            "pos_att_type": (["p2c", "c2p"], ["c2p", "p2c"]),
            "norm_rel_ebd": ("layer_norm",),
            "max_relative_positions": (-1,),
            "type_vocab_size": (0,),
            "position_biased_input": (False,),
            "conv_kernel_size": (None, 0),
        },
    ),
    "mpnet": replace(
        _ROBERTA,
        prefix="mpnet.",
        parts={
            "q": "attention.attn.q",
            "k": "attention.attn.k",
            "v": "attention.attn.v",
            "m1": "attention.attn.o",
            "LN1": "attention.LayerNorm",
            "m2": "intermediate.dense",
            "m3": "output.dense",
            "LN2": "output.LayerNorm",
        },
        outside={**_without(_BERT.outside, "type"), "r": "encoder.relative_attention_bias"},
        config={**_BERT.config, "relative_buckets": "relative_attention_num_buckets"},
        scores="relative",
    ),
    "electra": replace(
        _BERT,
        prefix="electra.",
        outside={**_without(_BERT.outside, "p"), "e": "embeddings_project"},
        config={**_BERT.config, "embedding_size": "embedding_size"},
        heads={"sequence": ClassHead("classifier.out_proj", "classifier.dense", "gelu")},
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
        heads={"sequence": ClassHead("classifier", "pre_classifier", "relu")},
    ),
    "modernbert": _MODERN,
    "gte": _GTE,
    "nomic_bert": _NOMIC,
    "eurobert": _EURO,
}


def family_of(model_type: str) -> Family:
    """The entry of `FAMILIES` for a Hugging Face `model_type`; raises UnsupportedBase without one."""
    try:
        return FAMILIES[model_type]
    except KeyError:
        supported = ", ".join(FAMILIES)
        raise UnsupportedBase(
            f"architecture {printable(model_type)!r} is not supported; supported: {supported}"
        ) from None
