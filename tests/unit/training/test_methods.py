"""Which parameters each method trains, against the names and the counts of the papers."""

import pytest

from onebert_encoder.base.anatomy import Anatomy
from onebert_encoder.base.families import FAMILIES
from onebert_store.errors import InvalidMethod
from onebert_training.methods import rules
from onebert_training.methods.methods import parse_method
from onebert_training.methods.rules import HEAD_LEARNING_RATE
from onebert_training.methods.table import METHODS

BERT_BASE = Anatomy(FAMILIES["bert"], 12, 768, 768, 3072, has_pooler=True)
BERT_LARGE = Anatomy(FAMILIES["bert"], 24, 1024, 1024, 4096, has_pooler=True)
DEFAULT = Anatomy(FAMILIES["bert"], 6, 384, 384, 1536, has_pooler=True)
TINY = Anatomy(FAMILIES["bert"], 2, 8, 8, 16, has_pooler=True)
FOUR_LAYERS = Anatomy(FAMILIES["bert"], 4, 8, 8, 16, has_pooler=True)
# Of the published models without heads, by hidden size.
NUM_PARAMETERS = {768: 109_482_240, 1024: 335_141_888, 384: 22_713_216, 8: 10_000}


def plan_of(method, anatomy=TINY, pooling="mean"):
    return parse_method(method).plan(anatomy, pooling, NUM_PARAMETERS[anatomy.hidden_size])


def names(method, anatomy=TINY, pooling="mean"):
    return {f"{part.prefix}{site.name}" for part in plan_of(method, anatomy, pooling).trainables for site in part.sites}


LAYER = [
    *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
]
QUERY, KEY, VALUE, ATTENTION, ATTENTION_NORM, INNER, OUTPUT, OUTPUT_NORM = LAYER
MAPS, NORMS = (QUERY, KEY, VALUE, ATTENTION, INNER, OUTPUT), (ATTENTION_NORM, OUTPUT_NORM)


def of_layers(pattern, *parts):
    return {pattern.format(f"encoder.layer.{i}.{part}") for i in (0, 1) for part in parts}


BIASES = {"delta.embeddings.LayerNorm.bias", *of_layers("delta.{}.bias", *LAYER)}
GAINS = of_layers("delta.{}.weight", *NORMS)
EVERY_NORM = {
    *(f"delta.embeddings.LayerNorm.{kind}" for kind in ("weight", "bias")),
    *(GAINS | of_layers("delta.{}.bias", *NORMS)),
}
WITHOUT_Q_AND_M2 = BIASES - of_layers("delta.{}.bias", QUERY, INNER)
OUTPUTS = of_layers("output_scale.{}", ATTENTION, OUTPUT)


@pytest.mark.parametrize(
    ("method", "pooling", "trained"),
    [
        *((method, "mean", BIASES) for method in ("bitfit", "init-bias", "random-bias:1%")),
        *(
            (method, "pooler", BIASES | {"delta.pooler.dense.bias"})
            for method in ("bitfit", "init-bias", "random-bias:1%")
        ),
        ("bitfit:-bq,-bm2", "mean", WITHOUT_Q_AND_M2),
        ("init-bias:-bq,-bm2", "mean", WITHOUT_Q_AND_M2),
        ("bitfit:bq,bm2", "mean", BIASES - WITHOUT_Q_AND_M2),
        ("layernorm", "pooler", EVERY_NORM),
        ("gamma", "mean", GAINS),
        ("gamma:gLN1", "mean", of_layers("delta.{}.weight", ATTENTION_NORM)),
        ("frozen", "pooler", set()),
        # Houlsby et al. 2019, Figure 2 and section 2: behind both sublayers, with the LayerNorms.
        ("adapter:2", "mean", of_layers("adapter_down.{}", ATTENTION, OUTPUT) | EVERY_NORM),
        ("ia3", "mean", of_layers("scale.{}", KEY, VALUE, OUTPUT)),
        ("ia3:o,m3", "mean", OUTPUTS),
        ("ia3:m3,inner,o", "mean", OUTPUTS | of_layers("scale.{}", OUTPUT)),
        ("ia3:-k,-v,-m2", "mean", OUTPUTS | of_layers("scale.{}", OUTPUT)),
        ("lora-xs:r=2,targets=m3,q", "mean", of_layers("lora_xs.{}", QUERY, OUTPUT)),
        # Wu et al. 2024, section 3: two vectors of the hidden size for each layer, behind the MLP.
        ("red", "mean", of_layers("output_scale.{}", OUTPUT) | of_layers("delta.{}.bias", OUTPUT)),
        *((f"random{kind}:5%", "mean", of_layers("sparse_value.{}", *MAPS)) for kind in ("", "-rows", "-cols")),
        ("lora:r=4,alpha=2,targets=v,o", "mean", of_layers("lora_A.{}", VALUE, ATTENTION)),
    ],
)
def test_a_method_trains_exactly_these_of_a_tiny_bert(method, pooling, trained):
    assert names(method, pooling=pooling) == trained


@pytest.mark.parametrize(
    ("method", "count", "per_cent"),
    [  # the number of the papers for BERT-base, and the per cent they print
        ("bitfit", 102_912, "0.09"),
        ("bitfit:bm2,bq", 46_080, "0.04"),
        ("bitfit:-bm2,-bq", 102_912 - 46_080, "0.05"),
        ("layernorm", 38_400, "0.04"),
        ("gamma", 18_432, "0.02"),
        ("red", 18_432, "0.02"),
        ("frozen", 0, "0.00"),
        ("random-bias:0.04%", 43_793, "0.04"),
        ("random:0.09%", 98_534, "0.09"),
        ("random-rows:0.09%", 86 * 768 + 11 * 3072, "0.09"),  # 97 of the 82,944 rows, three in 27 of them long
        ("random-cols:0.09%", 86 * 768 + 11 * 3072, "0.09"),
        ("diff-pruning:0.5%", 547_411, "0.50"),
        ("svd:r=8", 12 * 8 * (4 * 2 * 768 + 2 * (768 + 3072)), "1.21"),  # as many as LoRA's of that rank
        ("full", 109_482_240, "100.00"),
    ],
)
def test_counts_on_bert_base_are_the_papers(method, count, per_cent):
    plan = plan_of(method, BERT_BASE, "pooler")
    assert plan.num_parameters == count
    assert f"{100 * plan.num_parameters / NUM_PARAMETERS[768]:.2f}" == per_cent


def test_spafit_stratifies_as_its_table_1():
    biases, low_rank = plan_of("spafit:0-1-II", FOUR_LAYERS, "pooler").trainables
    by_layer = {layer: {p.symbol for p in biases.sites if p.layer == layer} for layer in (None, 0, 1, 2, 3)}
    assert by_layer[None] == by_layer[0] == set()
    assert by_layer[1] == {"b_q", "b_k", "b_v", "b_m1", "b_LN1", "b_m2", "b_m3", "b_LN2"}
    assert by_layer[2] == by_layer[3] == {"b_m2", "b_m3", "b_LN2"}
    paths = ("self.query", "self.key", "self.value", "output.dense")
    assert {m.name for m in low_rank.sites} == {f"encoder.layer.{i}.attention.{p}" for i in (2, 3) for p in paths}
    _, low_rank = plan_of("spafit:0-1-I", FOUR_LAYERS).trainables
    assert {m.name for m in low_rank.sites} == {f"encoder.layer.{i}.attention.{p}" for i in (2, 3) for p in paths[:3]}


@pytest.mark.parametrize(
    ("method", "pooling", "lowest"),
    [
        *((method, "mean", 0) for method in ("bitfit", "bitfit:bq", "bitfit:bLN0", "random-bias:1%", "layernorm")),
        *((method, "mean", 0) for method in ("gamma", "lora", "random:1%", "adapter:2", "ia3", "diff-pruning:1%")),
        *((method, "mean", 0) for method in ("full", "reinit+frozen", "spafit:1-2-I+gamma")),
        ("spafit:0-2-I", "mean", 1),
        ("spafit:1-2-II", "pooler", 2),
        ("spafit:1-2-I+bitfit:bp", "pooler", 2),
        ("spafit:2-2-II", "mean", 3),
        ("frozen", "mean", 4),
        ("bitfit:bp", "pooler", 4),
    ],
)
def test_the_lowest_trained_layer(method, pooling, lowest):
    assert plan_of(method, FOUR_LAYERS, pooling).lowest_layer == lowest


@pytest.mark.parametrize(
    ("method", "anatomy", "rate"),
    [  # the default base; the papers' 1e-3 and 3e-5 for bases two to three times as wide; never above the first
        ("bitfit", DEFAULT, 3e-3),
        ("bitfit", BERT_BASE, 1e-3),
        ("bitfit", BERT_LARGE, 1e-3),
        ("frozen", DEFAULT, HEAD_LEARNING_RATE),
        ("frozen", BERT_LARGE, HEAD_LEARNING_RATE),
        ("full", BERT_BASE, 5e-5),
        ("full", BERT_LARGE, 4e-5),
        ("adapter:64+bitfit:bq", DEFAULT, 1e-3),
        ("reinit+frozen", BERT_LARGE, HEAD_LEARNING_RATE),
    ],
)
def test_the_default_learning_rate_falls_with_the_width_but_for_a_head_alone(method, anatomy, rate):
    assert plan_of(method, anatomy).learning_rate == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("bitfit", "bitfit"),
        (" bitfit:b_m2,BQ ", "bitfit:bq,bm2"),
        ("bitfit: -b_m2, -bq", "bitfit:-bq,-bm2"),
        ("random:0.10%", "random:0.1%"),
        ("lora", "lora:r=8,alpha=16,targets=q,k,v"),
        ("lora:targets=o,q,r=2", "lora:r=2,alpha=4,targets=q,o"),
        ("lora:targets=all", "lora:r=8,alpha=16,targets=q,k,v,o,m2,m3"),
        ("spafit:1-3-I", "spafit:1-3-I,r=8,alpha=16"),
        ("gamma + bitfit:bq", "bitfit:bq+gamma:gLN1,gLN2"),
        ("bitfit+reinit", "reinit+bitfit"),
        ("lora-xs", "lora-xs:r=16,targets=q,v,o,m3"),
        ("svd", "svd:r=16,targets=q,k,v,o,m2,m3"),
        ("lora-xs:r=4,targets= all", "lora-xs:r=4,targets=q,k,v,o,m2,m3"),
        ("ia3:inner,v,k", "ia3"),
    ],
)
def test_text_is_canonical(text, canonical):
    assert parse_method(text).text == canonical
    assert parse_method(canonical).text == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", "+", "adapters", "frozen:bq", "full:bq", "red:m3", "layernorm:gLN1", "gamma:bq", "reinit", "reinit:bq"),
        *(f"bitfit:{part}" for part in ("bx", "gLN1", "bq,,bm2", "bq,-bm2")),
        "bitfit:-bq,-bk,-bv,-bm1,-bm2,-bmg,-bm3,-bLN1,-bLN2,-bLN0,-bLNf,-be,-bp",
        *(f"lora:{part}" for part in ("8", "r=8,r=4", "rank=8", "r=0", "r=x", "alpha=nan", "I,targets=q", "III")),
        *(f"lora:targets={part}" for part in ("", "q,z", "all,q")),
        *("lora-xs:r=0", "lora-xs:alpha=3", "lora-xs:targets=q,z", "svd:alpha=3", "svd:targets=z"),
        *("spafit", *(f"spafit:{part}" for part in ("3-1-I", "1-3", "1-3-III", "1-3-I,targets=q", "-1-3-I"))),
        *("adapter", "adapter:0", "adapter:-4", "adapter:x", "ia3:q", "ia3:-k,-v,-o,-m2,-inner,-m3"),
        *("random", *(f"random:{part}" for part in ("0.1", "0%", "-1%", "101%", "nan%"))),
        *("random-rows:many%", "random-bias:%", "diff-pruning", "bitfit+", "bitfit+bitfit:bq", "reinit+reinit"),
        *("reinit+svd", "reinit+diff-pruning:0.5%", "reinit+lora-xs", "frozen+bitfit", "full+gamma", "full+frozen"),
    ],
)
def test_wrong_text_is_refused_in_one_line(text):
    with pytest.raises(InvalidMethod) as caught:
        parse_method(text)
    assert "\n" not in caught.value.detail


@pytest.mark.parametrize(
    ("text", "pooling", "because"),
    [
        ("bitfit:bp", "mean", "no b_p"),
        ("bitfit:be", "mean", "no b_e"),
        ("init-bias:bp", "cls", "no b_p"),
        ("spafit:0-1-I", "mean", "needs 3 layers"),
        ("lora:r=9", "cls", "hidden size of the base, 8"),
        ("adapter:9", "cls", "hidden size of the base, 8"),
        ("random-bias:9%", "mean", "the biases are 152"),  # 900 of them asked for
        ("random-bias:0.001%", "mean", "0 numbers"),
        ("random:50%", "mean", "the layers' weights are 1,024"),
        ("random-rows:0.02%", "mean", "2 numbers, less than one of its rows"),
        ("diff-pruning:0.001%", "mean", "0 numbers"),
        ("bitfit+layernorm", "mean", "both train bLN0, bLN1, bLN2"),
        ("bitfit+init-bias:bq", "mean", "bitfit and init-bias:bq both train bq"),
        ("adapter:2+gamma:gLN1", "mean", "both train gLN1"),
        ("random:1%+random-rows:5%", "mean", "both train Wq"),
        ("random:1%+diff-pruning:1%", "mean", "both train Wq"),
        ("lora:r=2+svd:r=2", "mean", "both train Wq, Wk, Wv"),
        ("svd:r=9", "mean", "at most the hidden size of the base, 8"),
        ("svd:r=2+diff-pruning:1%", "mean", "both change the base's own weights"),
    ],
)
def test_a_method_that_the_base_cannot_take_is_refused(text, pooling, because):
    with pytest.raises(InvalidMethod, match=because):
        plan_of(text, TINY, pooling)


def test_the_table_says_how_each_method_is_written():
    assert all(entry.syntax.startswith(name) for name, entry in METHODS.items())
    # The rule of a method is the function of its name.
    assert all(callable(getattr(rules, name.replace("-", "_"), None)) for name in METHODS)
