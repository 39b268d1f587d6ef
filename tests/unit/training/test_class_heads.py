"""Checkpoints of transformers' classes on rotary bases: their weights as a delta answer what the class answers."""

from pathlib import Path

import pytest
import torch
import transformers

from bases import random_texts, tiny_base
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import stack_rows
from onebert_store.errors import InvalidInput
from onebert_training.interop.checkpoint.by_rank import changed_matrices, changed_tables, exact_tensors
from onebert_training.interop.checkpoint.finetuned import answer_all, read_finetuned

SEQUENCE, TOKEN = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"


def fine_tuned(folder: Path, family: str, auto_class: str, pooling: str | None) -> Path:
    """A model of the class whose every parameter but the tables differs from the base's."""
    torch.manual_seed(0)
    more = {} if pooling is None else {"classifier_pooling": pooling}
    model = getattr(transformers, auto_class).from_pretrained(tiny_base(family), num_labels=3, **more)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" not in name or "norm" in name.lower():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "auto_class", "said", "pooling"),
    [
        ("modernbert", SEQUENCE, "cls", "cls"),
        ("modernbert", SEQUENCE, "mean", "mean"),
        ("modernbert", TOKEN, None, "none"),
        ("gte", SEQUENCE, None, "cls"),
        ("nomic_bert", SEQUENCE, None, "cls"),
        ("nomic_bert", TOKEN, None, "none"),
        ("eurobert", SEQUENCE, "bos", "cls"),
        ("eurobert", SEQUENCE, "mean", "mean"),
        ("eurobert", TOKEN, None, "none"),
    ],
)
def test_a_delta_of_a_checkpoint_answers_as_its_class(
    tmp_path: Path, family: str, auto_class: str, said: str | None, pooling: str
) -> None:
    base = load_base(str(tiny_base(family)))
    checkpoint = read_finetuned(fine_tuned(tmp_path / "tuned", family, auto_class, said), base)
    exact, found = exact_tensors(checkpoint, base)
    assert (found, changed_tables(checkpoint.params, base)) == (pooling, [])
    tensors = {name: torch.from_numpy(value) for name, value in exact.items()}
    for module, difference in changed_matrices(checkpoint.params, base).items():
        # At full rank nothing is cut: what differs is rounding.
        tensors |= {f"lora_A.{module}": torch.eye(difference.shape[1]), f"lora_B.{module}": difference}
    row, texts = fold(base, tensors, pooling, checkpoint.head.activation), random_texts([3, 20, 70])
    with torch.inference_mode():
        ours = compute_logits(base, stack_rows(base, [row]), pack(base, texts, [0] * len(texts)))
    for one, other in zip(ours, answer_all(checkpoint.model, texts), strict=True):
        torch.testing.assert_close(one, torch.from_numpy(other), rtol=0, atol=1e-4)


def test_a_classifier_that_averages_logits_is_refused(tmp_path: Path) -> None:
    base, folder = load_base(str(tiny_base("eurobert"))), fine_tuned(tmp_path / "tuned", "eurobert", SEQUENCE, None)
    with pytest.raises(InvalidInput, match="classifier reads late, and a delta's the first token or the mean"):
        read_finetuned(folder, base)
