"""Whole matrices cut to low rank: beside NumPy's decomposition of every map, and what a server computes of the file."""

import numpy as np
import pytest
import torch

from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import stack_rows
from onebert_store.errors import NotFinite
from onebert_training.methods.methods import parse_method
from onebert_training.target_scale import TargetScale

RANK = 2
HALF = 2.0**-11  # relative rounding of half precision
SCALE = TargetScale()


def plan_of(base, method=f"svd:r={RANK}"):
    return parse_method(method).plan(base.anatomy, "mean", base.spec.num_parameters)


def trained(base, plan, seed=1):
    """Values with differences of full rank, larger ones in every other map."""
    generator = torch.Generator().manual_seed(seed)
    values = {name: value.detach() for name, value in plan.init(base, 2, 0).items()}
    for place, name in enumerate(sorted(name for name in values if name.startswith("whole."))):
        values[name] = (0.05 + 0.1 * (place % 2)) * torch.randn(values[name].shape, generator=generator)
    values["head.weight"] = torch.randn(values["head.weight"].shape, generator=generator)
    return values


def factors(tensors):
    """A and B of every map that has them, in double precision."""
    names = [name.removeprefix("lora_A.") for name in tensors if name.startswith("lora_A.")]
    return {
        name: (tensors[f"lora_A.{name}"].double().numpy(), tensors[f"lora_B.{name}"].double().numpy()) for name in names
    }


def best_parts(differences, budget):
    """NumPy's singular parts of all maps by what each explains per number, as many as fit."""
    parts = []
    for name, difference in differences.items():
        U, S, Vt = np.linalg.svd(difference.double().numpy(), full_matrices=False)
        size = sum(difference.shape)
        parts += [(S[i] ** 2 / size, size, name, S[i] * np.outer(U[:, i], Vt[i])) for i in range(len(S))]
    kept = {name: np.zeros(difference.shape) for name, difference in differences.items()}
    for _, size, name, part in sorted(parts, key=lambda one: -one[0]):
        if (budget := budget - size) < 0:
            break
        kept[name] += part
    return kept


def test_what_stays_are_the_leading_parts_of_all_maps_together(base):
    plan = plan_of(base)
    values = trained(base, plan)
    differences = {name: values[f"whole.{name}"] for name in base.spec.modules}
    want = best_parts(differences, plan.num_parameters)
    got = factors(plan.tensors(values, SCALE))
    ranks = {len(A) for A, _ in got.values()}
    assert len(ranks) > 1  # larger differences have more parts
    for name, difference in differences.items():
        A, B = got.get(name, (np.zeros((0, difference.shape[1])), np.zeros((difference.shape[0], 0))))
        # Each product of two rounded numbers is off by at most twice the rounding; so is their sum, of absolute values.
        bound = 2.1 * HALF * np.abs(B) @ np.abs(A) + 1e-6
        assert (np.abs(B @ A - want[name]) <= bound).all(), name
    assert sum(A.size + B.size for A, B in got.values()) <= plan.num_parameters


def test_the_file_holds_half_precision(base):
    plan = plan_of(base)
    dtypes = {name: tensor.dtype for name, tensor in plan.tensors(trained(base, plan), SCALE).items()}
    assert {dtypes[name] for name in dtypes if name.startswith("lora_")} == {torch.float16}
    assert {dtypes[name] for name in dtypes if not name.startswith("lora_")} == {torch.float32}


def answer(base, tensors):
    tokens = base.tokenizer.encode(["the parcel was late, thanks"], 16)
    return compute_logits(base, stack_rows(base, [fold(base, tensors)]), pack(base, tokens, [0]))[0]


@pytest.mark.parametrize("method", [f"svd:r={RANK}", f"bitfit+gamma+svd:r={RANK},targets=q,m3"])
def test_evaluations_measure_what_is_served(base, method):
    plan = plan_of(base, method)
    values = trained(base, plan)
    view = plan.view(base, values, training=False)
    served = {name: tensor.float() for name, tensor in plan.tensors(values, SCALE).items()}
    measured = answer(view, plan.row_tensors(values, SCALE))
    assert torch.allclose(answer(base, served), measured, atol=1e-5)
    step = answer(plan.view(base, values, training=True), plan.row_tensors(values, SCALE))
    assert not torch.allclose(step, measured, atol=1e-3)  # what is cut off is seen in training alone


def test_training_computes_with_whole_differences(base):
    plan = plan_of(base, f"svd:r={RANK},targets=o")
    values = trained(base, plan)
    view = plan.view(base, values, training=True)
    changed = {name for name, value in view.params.items() if not torch.equal(value, base.params[name])}
    assert changed == {f"{module.name}.weight" for module in base.anatomy.modules if module.symbol == "W_m1"}
    for name in changed:
        whole = values[f"whole.{name.removesuffix('.weight')}"]
        assert torch.equal(view.params[name], base.params[name] + whole)


def test_without_a_difference_there_is_nothing_in_the_file(base):
    plan = plan_of(base)
    assert plan.tensors(plan.init(base, 2, 0), SCALE).keys() == {"head.weight", "head.bias"}


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_differences_that_are_no_numbers_are_refused(base, broken):
    plan = plan_of(base)
    values = trained(base, plan)
    next(value for name, value in values.items() if name.startswith("whole."))[0, 0] = broken
    with pytest.raises(NotFinite):
        plan.tensors(values, SCALE)
