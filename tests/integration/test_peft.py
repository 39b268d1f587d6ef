"""LoRA against the installed `peft`: its adapter, written as a delta, answers what its own model answers."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForSequenceClassification

from bases import tiny_base
from onebert_encoder.base import load_base
from onebert_encoder.batch import pack
from onebert_encoder.fold import fold, stack_rows
from onebert_encoder.predict import compute_logits
from onebert_encoder.tokens import Tokens

RANK, ALPHA = 4, 16

# peft still calls transformers by a name that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def test_a_peft_lora_adapter_answers_the_same_as_a_delta() -> None:
    model = AutoModelForSequenceClassification.from_pretrained(tiny_base("bert"), num_labels=3).eval()
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=RANK, lora_alpha=ALPHA, target_modules=["query", "value", "output.dense"]
    )
    adapted = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" not in name and "modules_to_save" not in name:
                continue
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
            path = name.removeprefix("base_model.model.").removeprefix("bert.")
            if ".lora_" in path:
                module, kind = path.split(".lora_")
                # In a delta the scale alpha / r is already inside B.
                scale = ALPHA / RANK if kind.startswith("B") else 1.0
                tensors[f"lora_{kind[0]}.{module}"] = parameter * scale
            else:
                tensors[f"head.{path.rsplit('.', 1)[1]}"] = parameter.clone()
    base = load_base(str(tiny_base("bert")))
    assert len(tensors) == 2 + 2 * 4 * base.config.num_layers
    rng = np.random.default_rng(0)
    texts = [Tokens(ids, [0] * len(ids)) for n in (3, 20, 55, 20) if (ids := rng.integers(5, 150, n).tolist())]
    rows = stack_rows(base, [fold(base, tensors, "pooler")])
    with torch.inference_mode():
        ours = compute_logits(base, rows, pack(base, texts, [0] * len(texts)))
        theirs = [adapted(input_ids=torch.tensor([text.input_ids])).logits[0] for text in texts]
    assert max(float(logits.abs().max()) for logits in theirs) > 0.5
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
