"""Methods that change the base: against Hugging Face's gradients and initialization, and Louizos' distribution."""

import math

import pytest
import torch
from scipy.stats import logistic
from transformers import AutoConfig, AutoModel

from bases import FAMILIES, tiny_base
from batches import logits_of, packed
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import stack_rows
from onebert_training.methods import weights
from onebert_training.methods.methods import parse_method
from onebert_training.target_scale import TargetScale

LOG_ALPHAS = (-6.0, -2.0, 0.0, 0.7, 3.0)


def plan_of(base, method, pooling="mean"):
    return parse_method(method).plan(base.anatomy, pooling, base.spec.num_parameters)


def leaf_of(log_alpha, count):
    return torch.full((count,), log_alpha / weights.GATE_SPEED)


@pytest.mark.parametrize("log_alpha", LOG_ALPHAS)
def test_a_gate_is_open_as_often_as_the_closed_form_says(log_alpha):
    """Louizos et al. 2018: log(u / (1 - u)) is logistic, and the stretched sigmoid is above 0 from there on."""
    zero = -weights.GAMMA / (weights.ZETA - weights.GAMMA)
    expected = logistic.sf(weights.BETA * math.log(zero / (1 - zero)) - log_alpha)
    assert weights.open_probability(leaf_of(log_alpha, 1)).item() == pytest.approx(expected, rel=1e-5)
    samples = weights.gate(leaf_of(log_alpha, 100_000), torch.Generator().manual_seed(0))
    # Five standard deviations of a frequency among 100,000.
    deviation = math.sqrt(expected * (1 - expected) / 100_000)
    assert (samples > 0).float().mean().item() == pytest.approx(expected, abs=5 * deviation)
    assert ((samples >= 0) & (samples <= 1)).all()


def answer(base, tensors, pooling="mean"):
    tokens = base.tokenizer.encode(["the parcel was late, thanks"], 16)
    return logits_of(base, stack_rows(base, [fold(base, tensors, pooling)]), packed(base, tokens, [0]))[0]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "modernbert"])
def test_a_fresh_start_is_as_hugging_face_initializes(family):
    base = load_base(str(tiny_base(family)))
    model = AutoModel.from_config(AutoConfig.from_pretrained(tiny_base(family)))
    fresh = weights.reinitialized(base, torch.Generator().manual_seed(0))
    theirs = {name: value for name, value in model.named_parameters() if name in base.params}
    assert fresh.keys() == theirs.keys()
    for name, value in theirs.items():
        if value.unique().numel() == 1:
            assert torch.equal(fresh[name], value.detach()), name
        else:
            # Standard deviations of n normal numbers scatter by 1 / sqrt(2n) of themselves, means by 1 / sqrt(n).
            n = value.numel()
            assert fresh[name].std().item() == pytest.approx(0.02, rel=5 / math.sqrt(2 * n)), name
            assert value.std().item() == pytest.approx(0.02, rel=5 / math.sqrt(2 * n) + 0.02), name
            assert abs(fresh[name].mean().item()) < 5 * 0.02 / math.sqrt(n), name
    words = f"{base.anatomy.path('word')}.weight"
    assert torch.equal(fresh[words] == 0, theirs[words] == 0)


@pytest.mark.parametrize("training", [False, True])
def test_a_changed_base_answers_in_bfloat16_what_it_answers_in_float32(training):
    answers = []
    for dtype in (torch.float32, torch.bfloat16):
        base = load_base(str(tiny_base("bert")), dtype=dtype)
        plan = plan_of(base, "full")
        values = plan.init(base, 2, 0)
        with torch.set_grad_enabled(training):
            answers.append(answer(plan.view(base, values), plan.row_tensors(values, TargetScale())))
    # Numbers of order 1 that bfloat16 has rounded to 8 bits some ten times.
    assert torch.allclose(*answers, atol=0.05)


@pytest.mark.parametrize(
    ("method", "cut"),
    [("bitfit+gamma+svd", True), ("diff-pruning:0.5%", True), ("full", False), ("bitfit", False), ("lora:r=2", False)],
)
def test_the_parameters_that_are_trained_are_the_leaves(method, cut):
    base = load_base(str(tiny_base()))
    plan = plan_of(base, method)
    leaves = {name: leaf for name, leaf in plan.init(base, 2, 0).items() if leaf.requires_grad}
    sizes = [leaf.numel() for name, leaf in leaves.items() if not name.startswith(("head.", "gate."))]
    assert plan.num_trained == sum(sizes)
    assert (plan.num_trained > plan.num_parameters) == cut
