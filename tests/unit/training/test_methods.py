"""Which parameters each method trains, against the names and the counts of the papers."""

import pytest

from onebert_encoder.anatomy import FAMILIES, Anatomy
from onebert_store.errors import InvalidMethod
from onebert_training.methods import METHODS, parse_method

BERT_BASE = Anatomy(FAMILIES["bert"], 12, 768, 768, 3072, has_pooler=True)
BERT_LARGE = Anatomy(FAMILIES["bert"], 24, 1024, 1024, 4096, has_pooler=True)
BERT_BASE_PARAMETERS = 109_482_240
TINY = Anatomy(FAMILIES["bert"], 2, 8, 8, 16, has_pooler=True)
SMALL_ELECTRA = Anatomy(FAMILIES["electra"], 2, 8, 4, 16, has_pooler=False)


def names(method, anatomy=TINY, pooling="mean"):
    return {parameter.name for parameter in parse_method(method).plan(anatomy, pooling).parameters}


def lora_names(method, anatomy=TINY):
    return {module.name for module in parse_method(method).plan(anatomy, "mean").modules}


def test_bitfit_trains_exactly_the_biases_of_a_tiny_bert():
    layer = [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ]
    expected = {f"encoder.layer.{i}.{part}.bias" for i in (0, 1) for part in layer} | {"embeddings.LayerNorm.bias"}
    assert names("bitfit") == expected
    assert names("bitfit", pooling="pooler") == expected | {"pooler.dense.bias"}


def test_layernorm_and_gamma_train_exactly_these_of_a_tiny_bert():
    norms = {f"encoder.layer.{i}.{part}.LayerNorm" for i in (0, 1) for part in ("attention.output", "output")}
    everything = {f"{norm}.{kind}" for norm in norms | {"embeddings.LayerNorm"} for kind in ("weight", "bias")}
    assert names("layernorm", pooling="pooler") == everything
    assert names("gamma") == {f"{norm}.weight" for norm in norms}
    assert names("gamma:gLN1") == {f"encoder.layer.{i}.attention.output.LayerNorm.weight" for i in (0, 1)}


def test_frozen_trains_nothing_of_the_base():
    plan = parse_method("frozen").plan(TINY, "pooler")
    assert (plan.parameters, plan.modules, plan.num_parameters) == ((), (), 0)


def test_electra_has_the_bias_of_its_projection():
    assert "embeddings_project.bias" in names("bitfit", SMALL_ELECTRA)
    assert names("bitfit:be", SMALL_ELECTRA) == {"embeddings_project.bias"}


@pytest.mark.parametrize(
    ("method", "count", "per_cent"),
    [  # the number of the papers for BERT-base, and the per cent they print
        ("bitfit", 102_912, "0.09"),
        ("bitfit:bm2,bq", 46_080, "0.04"),
        ("bitfit:bm2", 36_864, "0.03"),
        ("bitfit:bq", 9_216, "0.01"),
        ("layernorm", 38_400, "0.04"),
        ("gamma", 18_432, "0.02"),
        ("gamma:gLN2", 9_216, "0.01"),
        ("bitfit:bLN1,bLN2", 18_432, "0.02"),
        ("frozen", 0, "0.00"),
    ],
)
def test_counts_on_bert_base_are_the_papers(method, count, per_cent):
    plan = parse_method(method).plan(BERT_BASE, "pooler")
    assert plan.num_parameters == count
    assert f"{100 * plan.num_parameters / BERT_BASE_PARAMETERS:.2f}" == per_cent


@pytest.mark.parametrize(
    ("method", "paper_millions"),
    [  # SPAFIT's Table 2 (BERT-large, r=64, alpha=128)
        ("lora:r=64,alpha=128", 9.44),
        ("lora:r=64,alpha=128,targets=q,k,v,o", 12.59),
        ("spafit:8-12-I,r=64,alpha=128", 4.44),
        ("spafit:8-12-II,r=64,alpha=128", 5.88),
        ("spafit:8-16-II,r=64,alpha=128", 3.81),
        ("spafit:4-9-I,r=64,alpha=128", 5.65),
        ("spafit:4-9-II,r=64,alpha=128", 7.49),
        ("spafit:4-14-II,r=64,alpha=128", 4.89),
    ],
)
def test_counts_on_bert_large_are_those_of_spafit_table_2(method, paper_millions):
    """The paper counts about 3,000 numbers more: the classifier (2 x 1024 + 2) and the pooler's bias."""
    count = parse_method(method).plan(BERT_LARGE, "cls").num_parameters
    assert round((count + 2 * 1024 + 2 + 1024) / 1e6, 2) == paper_millions


def test_spafit_stratifies_as_its_table_1():
    anatomy = Anatomy(FAMILIES["bert"], 4, 8, 8, 16, has_pooler=True)
    plan = parse_method("spafit:0-1-II").plan(anatomy, "pooler")
    by_layer = {layer: {p.symbol for p in plan.parameters if p.layer == layer} for layer in (None, 0, 1, 2, 3)}
    assert by_layer[None] == by_layer[0] == set()
    assert by_layer[1] == {"b_q", "b_k", "b_v", "b_m1", "b_LN1", "b_m2", "b_m3", "b_LN2"}
    assert by_layer[2] == by_layer[3] == {"b_m2", "b_m3", "b_LN2"}
    paths = ("self.query", "self.key", "self.value", "output.dense")
    assert {m.name for m in plan.modules} == {f"encoder.layer.{i}.attention.{p}" for i in (2, 3) for p in paths}
    assert lora_names("spafit:0-1-I", anatomy) == {
        f"encoder.layer.{i}.attention.{p}" for i in (2, 3) for p in paths[:3]
    }


def test_lora_scale_and_targets():
    plan = parse_method("lora:r=4,alpha=2,targets=v,o").plan(TINY, "mean")
    assert (plan.rank, plan.scale) == (4, 0.5)
    assert {m.symbol for m in plan.modules} == {"W_v", "W_m1"}
    assert plan.num_parameters == 2 * 2 * 4 * (8 + 8)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("bitfit", "bitfit"),
        (" bitfit:b_m2,BQ ", "bitfit:bq,bm2"),
        ("gamma", "gamma:gLN1,gLN2"),
        ("lora", "lora:r=8,alpha=16,targets=q,k,v"),
        ("lora:targets=o,q,r=2", "lora:r=2,alpha=4,targets=q,o"),
        ("spafit:1-3-I", "spafit:1-3-I,r=8,alpha=16"),
        ("spafit:1-3-II, r=4, alpha=0.5", "spafit:1-3-II,r=4,alpha=0.5"),
    ],
)
def test_text_is_canonical(text, canonical):
    assert parse_method(text).text == canonical
    assert parse_method(canonical).text == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        "adapter",
        "frozen:bq",
        "bitfit:bx",
        "bitfit:gLN1",
        "bitfit:bq,,bm2",
        "gamma:bq",
        "layernorm:gLN1",
        "lora:8",
        "lora:r=8,r=4",
        "lora:rank=8",
        "lora:r=0",
        "lora:r=x",
        "lora:alpha=nan",
        "lora:targets=",
        "lora:targets=q,z",
        "spafit",
        "spafit:3-1-I",
        "spafit:1-3",
        "spafit:1-3-III",
        "spafit:1-3-I,targets=q",
        "spafit:-1-3-I",
    ],
)
def test_wrong_text_is_refused_in_one_line(text):
    with pytest.raises(InvalidMethod) as caught:
        parse_method(text)
    assert "\n" not in caught.value.detail


@pytest.mark.parametrize(
    ("text", "pooling"),
    [("bitfit:bp", "mean"), ("bitfit:be", "mean"), ("spafit:0-1-I", "mean"), ("lora:r=9", "cls")],
)
def test_a_method_that_the_base_cannot_take_is_refused(text, pooling):
    with pytest.raises(InvalidMethod):
        parse_method(text).plan(TINY, pooling)


def test_the_table_says_how_each_method_is_written():
    assert all(entry.syntax.startswith(name) for name, entry in METHODS.items())
