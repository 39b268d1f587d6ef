"""The counted work of a pass, beside PyTorch's counter of operations and the bytes of the base's own matrices."""

import runpy
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel

from bases import loaded, random_texts, tiny_base

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/serving/roofline.py"))


@pytest.mark.parametrize("lengths", [(9,), (3, 30, 11)])
def test_products_and_attention_have_the_operations_that_pytorch_counts(lengths):
    tokens = random_texts(lengths)
    model = AutoModel.from_pretrained(tiny_base(), add_pooling_layer=False, attn_implementation="eager").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for text in tokens:
            model(torch.tensor([text.input_ids]))
    counted = [one for one in SCRIPT["stages_of"](loaded(), tokens) if one.is_product]
    assert sum(one.operations for one in counted) == counter.get_total_flops()


def test_products_read_every_matrix_of_the_layers_once():
    base = loaded()
    matrices = [one for name, one in base.params.items() if one.ndim == 2 and "encoder.layer" in name]
    for count in (1, 50):
        read = sum(one.weights for one in SCRIPT["products_of"](base, count))
        assert read == sum(one.numel() * one.element_size() for one in matrices)


def test_a_stage_is_bound_by_the_lower_ceiling():
    stage, roof = SCRIPT["Stage"]("product", 3e9, 0, 4e9), SCRIPT["Roof"]
    slow_memory, slow_units = roof(1e9, 2e9, 1e9), roof(6e9, 1e9, 1e9)
    assert (slow_memory.ms(stage), slow_memory.by(stage)) == (3000, "memory")
    assert (slow_units.ms(stage), slow_units.by(stage)) == (4000, "units")
