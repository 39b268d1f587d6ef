"""Which Hugging Face class holds a head: said by the family's entry, and refused where it says nothing."""

from dataclasses import replace

import pytest

from onebert_encoder.base.anatomy import FAMILIES
from onebert_store.errors import InvalidInput
from onebert_training.interop.heads import fitting_layout, layout_of, peft_layout
from tiny_delta import make_delta

HEAD = ("head.weight", "head.bias")


@pytest.fixture
def new_family(monkeypatch):
    """A family without an entry for its sequence head."""
    monkeypatch.setattr(
        "onebert_encoder.base.anatomy.FAMILIES",
        {**FAMILIES, "newbert": replace(FAMILIES["bert"], sequence_head=None)},
    )
    return "newbert"


def manifest_of(model_type, pooling):
    manifest = make_delta().manifest
    base = manifest.base.model_copy(update={"model_type": model_type})
    return manifest.model_copy(update={"base": base, "pooling": pooling, "task_type": "single_label"})


def test_a_family_without_a_known_head_is_refused_by_name(new_family):
    with pytest.raises(InvalidInput, match="sequence classifier of newbert keeps its layers is not known"):
        layout_of(new_family, "sequence")
    assert fitting_layout(manifest_of(new_family, "pooler"), HEAD) is None
    with pytest.raises(InvalidInput, match="PEFT has no classifier for newbert"):
        peft_layout(manifest_of(new_family, "pooler"), HEAD)
    assert layout_of(new_family, "token").linear == "classifier"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_a_delta_cannot_hold_is_refused(family):
    head = FAMILIES[family].sequence_head
    if head.activation == "tanh":
        assert layout_of(family, "sequence").dense == head.dense
    else:
        with pytest.raises(InvalidInput, match=f"has a {head.activation} layer"):
            layout_of(family, "sequence")
