"""Whole matrices cut to low rank: beside NumPy's decomposition of every map, and what a server computes of the file."""

import numpy as np
import pytest
import torch

from bases import tiny_base
from onebert_encoder.base.base import load_base
from onebert_store.errors import NotFinite
from onebert_store.file.delta import Delta
from onebert_training.fit.evaluation import predict, predict_delta
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.result import to_arrays
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.methods.methods import parse_method
from onebert_training.target_scale import TargetScale

RANK = 2
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


def least_missed(differences, budget):
    """What NumPy's leading parts of all maps miss of the squared differences, by Eckart and Young the least."""
    parts = []
    for difference in differences.values():
        size = sum(difference.shape)
        sizes = np.linalg.svd(difference.double().numpy(), compute_uv=False)
        parts += [(value**2 / size, size, value**2) for value in sizes]
    missed = sum(square for _, _, square in parts)
    for _, size, square in sorted(parts, key=lambda part: -part[0]):
        if (budget := budget - size) < 0:
            break
        missed -= square
    return missed


def test_what_stays_are_the_leading_parts_of_all_maps_together(base):
    plan = plan_of(base)
    values = trained(base, plan)
    differences = {name: values[f"whole.{name}"] for name in base.spec.modules}
    kept = factors(plan.tensors(values, SCALE))
    assert len({len(A) for A, _ in kept.values()}) > 1  # larger differences have more parts
    assert sum(A.size + B.size for A, B in kept.values()) <= plan.num_parameters
    missed = sum(
        np.square(difference.numpy() - (kept[name][1] @ kept[name][0] if name in kept else 0)).sum()
        for name, difference in differences.items()
    )
    # Half precision is off by at most two roundings of what is kept, squared and summed far below a thousandth.
    assert missed == pytest.approx(least_missed(differences, plan.num_parameters), rel=1e-3)


def test_the_file_holds_half_precision(base):
    plan = plan_of(base)
    dtypes = {name: tensor.dtype for name, tensor in plan.tensors(trained(base, plan), SCALE).items()}
    assert {dtypes[name] for name in dtypes if name.startswith("lora_")} == {torch.float16}
    assert {dtypes[name] for name in dtypes if not name.startswith("lora_")} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", [f"svd:r={RANK}", f"bitfit+gamma+svd:r={RANK},targets=q,m3"])
def test_evaluations_measure_what_is_served(data, method, dtype):
    base = load_base(str(tiny_base("bert")), dtype=dtype)
    run = Run(TaskInputs(base, data, 40), Settings(method=method), "tone")
    values = trained(base, run.plan)
    model = run.model(values)
    file = Delta(run.manifest, to_arrays(model.tensors))
    served = np.stack(predict_delta(base, file, run.inputs.splits["test"].tokens))
    np.testing.assert_array_equal(np.stack(run.logits(model, "test")), served)
    with torch.no_grad():
        view = run.view(values)
        step = predict(view, run.fold(view, values), run.features("test"))
    assert np.abs(np.stack(step) - served).max() > 1e-3  # what is cut off is seen in training alone


def test_training_computes_with_whole_differences(base):
    plan = plan_of(base, f"svd:r={RANK},targets=o")
    values = trained(base, plan)
    view = plan.view(base, values)
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
