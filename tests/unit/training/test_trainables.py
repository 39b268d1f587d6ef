"""The parts of a plan: file tensors that fit the base, starts that change nothing, gradients, draws from the seed.

And whole matrices cut to low rank: beside NumPy's decomposition, and what a server computes of the file.
"""

import numpy as np
import pytest
import torch

from bases import tiny_base
from batches import logits_of, packed
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import stack_rows
from onebert_store.file.delta import Delta
from onebert_training.fit.features import predict, predict_delta
from onebert_training.fit.result import to_arrays
from onebert_training.fit.settings import Settings
from onebert_training.methods.methods import parse_method
from onebert_training.target_scale import TargetScale
from trainings import short_run

SERVABLE = (
    *("frozen", "bitfit", "bitfit:-bq,-bm2", "init-bias", "init-bias:bq,bLN2", "random-bias:0.5%", "layernorm"),
    *("gamma:gLN2", "random:0.2%", "random-rows:1%", "random-cols:1%", "lora:II,r=3", "spafit:0-1-II,r=2"),
    *("adapter:5", "ia3", "diff-pruning:0.5%", "bitfit:bq,bm2+gamma+lora:r=2+random:0.2%+ia3"),
)
SEED = 7
SVD = "svd:r=2"


def plan_of(base, method, pooling="mean"):
    return parse_method(method).plan(base.anatomy, pooling, base.spec.num_parameters)


def answer(base, tensors):
    row = fold(base, tensors, "mean")
    tokens = base.tokenizer.encode(["the parcel was late", "good"], 16)
    return torch.stack(logits_of(base, stack_rows(base, [row]), packed(base, tokens, [0, 0])))


@pytest.mark.parametrize("method", SERVABLE)
def test_before_training_nothing_changes(base, method):
    plan = plan_of(base, method)
    values = plan.init(base, 3, SEED)
    head = {name: value for name, value in values.items() if name.startswith("head.")}
    start = {name: torch.zeros_like(value) for name, value in base.params.items() if name in zeroed(plan)}
    got = answer(plan.view(base, values), plan.row_tensors(values, TargetScale()))
    assert torch.allclose(got, answer(base.with_params(start), head), atol=1e-5)  # the order of a few roundings


def zeroed(plan):
    """The base with biases of zero, from which init-bias starts."""
    return {site.name for part in plan.trainables if getattr(part, "from_zero", False) for site in part.sites}


@pytest.mark.parametrize(("method", "axis"), [("random-rows:2%", 1), ("random-cols:2%", 0)])
def test_rows_and_columns_are_whole(base, method, axis):
    plan = plan_of(base, method)
    tensors = plan.tensors(plan.init(base, 2, SEED), TargetScale())
    lines = []
    for name, shape in base.spec.modules.items():
        if (places := tensors.get(f"sparse_index.{name}")) is not None:
            mask = torch.zeros(shape, dtype=torch.bool)
            mask.view(-1)[places] = True
            touched = mask.any(axis)
            assert torch.equal(mask.all(axis), touched)
            lines += [shape[axis]] * int(touched.sum())
    # 2 % of the base's 40,704 numbers are 1/34 of the layers' weights: of each length that share of its lines.
    assert set(lines) == {32, 64}
    assert sum(lines) == plan.num_parameters == pytest.approx(0.02 * base.spec.num_parameters, abs=(32 + 64) / 2)


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
    plan = plan_of(base, SVD)
    values = trained(base, plan)
    differences = {name: values[f"whole.{name}"] for name in base.spec.modules}
    of_maps = factors(plan.tensors(values, TargetScale()))
    assert len({len(A) for A, _ in of_maps.values()}) > 1  # larger differences have more parts
    assert sum(A.size + B.size for A, B in of_maps.values()) <= plan.num_parameters
    missed = sum(
        np.square(difference.numpy() - (of_maps[name][1] @ of_maps[name][0] if name in of_maps else 0)).sum()
        for name, difference in differences.items()
    )
    # Half precision is off by at most two roundings of what is kept, squared and summed far below a thousandth.
    assert missed == pytest.approx(least_missed(differences, plan.num_parameters), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", [SVD, "bitfit+gamma+svd:r=2,targets=q,m3"])
def test_evaluations_measure_what_is_served(data, method, dtype):
    base = load_base(str(tiny_base("bert")), dtype=dtype)
    run = short_run(base, data, Settings(method=method))
    values = trained(base, run.plan)
    model = run.model(values)
    file = Delta(run.manifest, to_arrays(model.tensors))
    served = np.stack(predict_delta(base, file, run.inputs.splits["test"].tokens))
    np.testing.assert_array_equal(np.stack(run.logits(model, "test")), served)
    with torch.no_grad():
        view = run.view(values)
        step = predict(view, run.fold(view, values), run.features("test"))
    assert np.abs(np.stack(step) - served).max() > 1e-3  # what is cut off is seen in training alone
