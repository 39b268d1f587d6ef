"""Random PEFT adapters on tiny bases, and the logits that PEFT, plain models and deltas give for the same tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import get_peft_model
from torch import Tensor
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from bases import tiny_base
from batches import logits_of, packed
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.text.tokens import Tokens
from onebert_store.file.delta import Delta

AUTO_CLASSES = {
    "SEQ_CLS": AutoModelForSequenceClassification,
    "TOKEN_CLS": AutoModelForTokenClassification,
    "QUESTION_ANS": AutoModelForQuestionAnswering,
}

# float32 both; PEFT multiplies B(Ax) by the scale where a delta has it in B, and folding adds in another order.
TOLERANCE = 1e-4

# What a path of an adapted model has where PEFT trains something.
_TRAINED = ("lora_", "ia3_l", "ln_tuning_layers", "modules_to_save.default")


def base_of(family: str) -> Base:
    return load_base(str(tiny_base(family)))


def random_adapter(family: str, config: Any, folder: Path, seed: int = 0, num_labels: int = 3, **more: Any) -> Any:
    """A PEFT model with random tensors wherever it trains, saved in `folder`; `more` goes into its configuration."""
    torch.manual_seed(seed)  # heads and low-rank maps start at random
    classes = {} if config.task_type == "QUESTION_ANS" else {"num_labels": num_labels}
    model = AUTO_CLASSES[config.task_type].from_pretrained(tiny_base(family), **classes, **more)
    adapted = get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if any(part in name for part in _TRAINED) or parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    adapted.save_pretrained(folder)
    return adapted


def texts() -> list[Tokens]:
    """Sequences of several lengths, one of two tokens among them; in one the id that is RoBERTa's `<pad>` is typed."""
    rng = np.random.default_rng(0)
    drawn = [rng.integers(5, 150, n).tolist() for n in (2, 20, 55, 20)]
    drawn[2][30] = 1
    return [Tokens(ids, [0] * len(ids)) for ids in drawn]


@torch.inference_mode()
def model_logits(model: Any, tokens: Sequence[Tokens]) -> list[Tensor]:
    """[labels] of each sequence, or [tokens, labels], from a Hugging Face or PEFT model."""
    outs = [model(input_ids=torch.tensor([text.input_ids])) for text in tokens]
    return [
        out.logits[0] if "logits" in out else torch.stack([out.start_logits[0], out.end_logits[0]], -1) for out in outs
    ]


@torch.inference_mode()
def delta_logits(base: Base, delta: Delta, tokens: Sequence[Tokens]) -> list[Tensor]:
    """The same as the server computes it."""
    rows = stack_rows(base, [fold_delta(base, delta)])
    return logits_of(base, rows, packed(base, tokens, [0] * len(tokens)))


def assert_equal_logits(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Equal up to rounding, and far enough from zero to mean something."""
    assert max(float(logits.abs().max()) for logits in theirs) > 0.3
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)
