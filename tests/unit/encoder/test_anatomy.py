"""The anatomy table against the papers' numbers and against what Hugging Face's own models hold."""

import pytest
from transformers import AutoModel

from bases import FAMILIES, opened, tiny_base
from onebert_encoder.base.anatomy import Anatomy
from onebert_encoder.base.base import load_base
from onebert_encoder.base.families import family_of


def bert(layers: int, hidden: int, pooler: bool = True) -> Anatomy:
    return Anatomy(family_of("bert"), layers, hidden, hidden, 4 * hidden, has_pooler=pooler)


def count(anatomy: Anatomy, *symbols: str) -> int:
    return sum(p.shape[0] for p in anatomy.parameters if p.symbol in symbols or (not symbols and p.symbol[0] == "b"))


def test_bert_base_has_the_papers_bias_counts() -> None:
    # BitFit: 0.09 % of BERT-base's parameters are biases, 102,912 with the embeddings' LayerNorm and the pooler.
    assert count(bert(12, 768)) == 102_912
    assert count(bert(12, 768), "b_q", "b_m2") == 46_080
    assert count(bert(24, 1024)) == 24 * 11 * 1024 + 2 * 1024


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_of_the_hugging_face_model_is_known(family: str) -> None:
    base = load_base(str(tiny_base(family)))
    plain = AutoModel.from_pretrained(tiny_base(family))
    assert base.spec.num_parameters == sum(value.numel() for value in plain.parameters())
    theirs = dict(opened(plain).named_parameters())
    added = {parameter.name for parameter in base.anatomy.parameters if not parameter.stored}
    assert {*base.anatomy.weights, *added} == set(theirs)
    assert not any(theirs[name].any() or base.params[name].any() for name in added)
    assert {p.name: p.shape for p in base.anatomy.parameters} == {
        name: tuple(value.shape)
        for name, value in theirs.items()
        if name.endswith(".bias") or "orm.weight" in name or "relative" in name
        # A delta cannot change DeBERTa's relative positions.
        if not name.startswith("encoder.LayerNorm")
    }
