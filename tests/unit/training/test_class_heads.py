"""Checkpoints of transformers' classes on rotary bases: their weights as a delta answer what the class answers."""

from pathlib import Path

import pytest
import torch
import transformers

from bases import random_texts, tiny_base
from batches import logits_of, packed
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import stack_rows
from onebert_store.errors import InvalidInput
from onebert_training.interop.checkpoint.by_rank import changed_matrices, changed_tables, exact_tensors
from onebert_training.interop.checkpoint.finetuned import answer_all, read_finetuned

SEQUENCE, TOKEN = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"


def fine_tuned(folder: Path, family: str, auto_class: str, **more: str) -> Path:
    """A model of the class whose every parameter but the tables differs from the base's."""
    torch.manual_seed(0)
    model = getattr(transformers, auto_class).from_pretrained(tiny_base(family), num_labels=3, **more)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # A delta does not hold the LayerNorm of relative positions.
            if ("embed" not in name or "norm" in name.lower()) and "encoder.LayerNorm" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "auto_class", "architecture", "pooling"),
    [
        ("modernbert", SEQUENCE, {"classifier_pooling": "cls"}, "cls"),
        ("modernbert", SEQUENCE, {"classifier_pooling": "mean", "classifier_activation": "relu"}, "mean"),
        ("modernbert", TOKEN, {}, "none"),
        ("modernbert", TOKEN, {"classifier_activation": "tanh"}, "none"),
        ("gte", SEQUENCE, {}, "cls"),
        ("nomic_bert", SEQUENCE, {}, "cls"),
        ("nomic_bert", TOKEN, {}, "none"),
        ("eurobert", SEQUENCE, {"classifier_pooling": "bos"}, "cls"),
        ("eurobert", SEQUENCE, {"classifier_pooling": "mean"}, "mean"),
        ("eurobert", TOKEN, {}, "none"),
        ("deberta-v2", SEQUENCE, {"pooler_hidden_act": "tanh"}, "cls"),
    ],
)
def test_a_delta_of_a_checkpoint_answers_as_its_class(
    tmp_path: Path, family: str, auto_class: str, architecture: dict[str, str], pooling: str
) -> None:
    base = load_base(str(tiny_base(family)))
    checkpoint = read_finetuned(fine_tuned(tmp_path / "tuned", family, auto_class, **architecture), base)
    exact, read = exact_tensors(checkpoint, base)
    assert (read, changed_tables(checkpoint.params, base)) == (pooling, [])
    tensors = {name: torch.from_numpy(value) for name, value in exact.items()}
    for module, difference in changed_matrices(checkpoint.params, base).items():
        # At full rank nothing is cut: what differs is rounding.
        tensors |= {f"lora_A.{module}": torch.eye(difference.shape[1]), f"lora_B.{module}": difference}
    row, texts = fold(base, tensors, pooling, checkpoint.head.activation), random_texts([3, 20, 70])
    with torch.inference_mode():
        ours = logits_of(base, stack_rows(base, [row]), packed(base, texts, [0] * len(texts)))
    for first, other in zip(ours, answer_all(checkpoint.model, texts), strict=True):
        torch.testing.assert_close(first, torch.from_numpy(other), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "architecture", "why"),
    [
        ("eurobert", {}, "classifier reads late, and a delta's the first token or the mean"),
        (
            "modernbert",
            {"classifier_activation": "silu"},
            "classifier_activation of the checkpoint's classifier is silu",
        ),
    ],
)
def test_a_classifier_that_no_delta_holds_is_refused(
    tmp_path: Path, family: str, architecture: dict[str, str], why: str
) -> None:
    base, folder = load_base(str(tiny_base(family))), fine_tuned(tmp_path / "tuned", family, SEQUENCE, **architecture)
    with pytest.raises(InvalidInput, match=why):
        read_finetuned(folder, base)
