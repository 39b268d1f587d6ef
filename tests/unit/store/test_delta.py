"""Whether a delta fits a base: everything that does not is refused by name."""

from dataclasses import replace

import numpy as np
import pytest

import tiny_delta
from onebert_store.errors import BaseMismatch, InvalidManifest, NotFinite, TensorMismatch
from onebert_store.file.delta import require_fit
from tiny_delta import KEY, MIDDLE, NORM, OUTPUT, QUERY, SPEC


def with_tensors(**changes):
    """The valid tensors, with some replaced by others, by ones of another shape, or (None) left out."""
    tensors = tiny_delta.tensors_for() | {
        name: np.ones(change, np.float32) if isinstance(change, tuple) else change for name, change in changes.items()
    }
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def adapter(module, size=2):
    """The four shapes of an adapter behind a module."""
    return {
        f"adapter_down.{module}.weight": (size, 4),
        f"adapter_down.{module}.bias": (size,),
        f"adapter_up.{module}.weight": (4, size),
        f"adapter_up.{module}.bias": (4,),
    }


def sparse(indices, values, module="encoder.layer.0.intermediate.dense", dtype=np.int32):
    return {f"sparse_index.{module}": np.array(indices, dtype), f"sparse_value.{module}": (values,)}


@pytest.mark.parametrize(
    ("changes", "tensors"),
    [
        ({}, {}),
        ({}, {"delta." + QUERY.format(0) + ".bias": None, "delta." + NORM.format(1): None}),
        ({}, {"lora_A." + MIDDLE.format(1): None, "lora_B." + MIDDLE.format(1): None}),
        ({}, {"lora_A." + MIDDLE.format(1): (4, 4), "lora_B." + MIDDLE.format(1): (8, 4)}),
        ({}, {"head.dense.weight": (4, 4), "head.dense.bias": (4,)}),
        (
            {"format": 3, "head": {"activation": "gelu"}},
            {"head.dense.weight": (4, 4), "head.dense.bias": (4,), "head.norm.weight": (4,)},
        ),
        ({"pooling": "pooler"}, {"delta.pooler.dense.bias": (4,)}),
        ({"pooling": "siamese"}, {"head.weight": (2, 17)}),
        ({}, adapter(OUTPUT.format(0)) | sparse([0, 7, 31], 3)),
        (
            {},
            {
                f"scale.{KEY.format(0)}": (4,),
                f"scale.{OUTPUT.format(1)}": (8,),
                f"output_scale.{OUTPUT.format(1)}": (4,),
                f"lora_xs.{OUTPUT.format(0)}": (4, 4),
            },
        ),
        ({"golden": {"input_ids": [[0, 49], [1] * 16], "logits": [[0.0, 0.5]] * 2}}, {}),
    ],
)
def test_what_fits_is_accepted(changes, tensors):
    require_fit(tiny_delta.make_delta(tensors=with_tensors(**tensors), **changes), SPEC)


def test_an_activation_without_its_layer_is_refused():
    with pytest.raises(TensorMismatch, match=r"missing: head.dense.bias, head.dense.weight"):
        require_fit(tiny_delta.make_delta(format=3, head={"activation": "relu"}), SPEC)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, r"head.weight is \[2, 4\], not \[2, 17\]"),
        ({"head.weight": (2, 17), "head.dense.weight": (4, 4), "head.dense.bias": (4,)}, "not tensors of this base"),
    ],
)
def test_a_head_on_pairs_reads_four_times_the_width_and_one(tensors, message):
    with pytest.raises(TensorMismatch, match=message):
        require_fit(tiny_delta.make_delta(tensors=with_tensors(**tensors), pooling="siamese"), SPEC)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"head.weight": None}, "missing: head.weight"),
        ({"head.bias": None}, "missing: head.bias"),
        ({"head.weight": (3, 4)}, r"head.weight is \[3, 4\], not \[2, 4\]"),
        ({"head.bias": (3,)}, r"head.bias is \[3\], not \[2\]"),
        ({"head.dense.weight": (4, 4)}, "missing: head.dense.bias"),
        ({"head.dense.bias": (4,)}, "missing: head.dense.weight"),
        ({"head.norm.weight": (4,)}, "missing: head.dense.bias, head.dense.weight"),
        ({"delta." + QUERY.format(0) + ".bias": (8,)}, r"query.bias is \[8\], not \[4\]"),
        ({"delta." + QUERY.format(2) + ".bias": (4,)}, "not tensors of this base and pooling: delta.encoder.layer.2"),
        ({"delta." + QUERY.format(0) + ".weight": (4, 4)}, "not tensors of this base and pooling: delta.encoder"),
        ({"delta.pooler.dense.bias": (4,)}, "not tensors of this base and pooling: delta.pooler.dense.bias"),
        ({QUERY.format(0) + ".bias": (4,)}, "not tensors of this base"),
        ({"sparse_value." + QUERY.format(0) + ".weight": (4,)}, "not tensors of this base"),
        ({"adapter_down." + QUERY.format(0) + ".weight": (4, 4)}, "not tensors of this base"),
        ({"lora_A." + MIDDLE.format(1): None}, "missing: lora_A.encoder.layer.1"),
        ({"lora_B." + MIDDLE.format(1): None}, "missing: lora_B.encoder.layer.1"),
        ({"lora_B." + MIDDLE.format(1): (8, 3)}, r"is \[8, 3\], not \[8, 2\]"),
        ({"lora_A." + MIDDLE.format(1): (2, 8)}, r"is \[2, 8\], not \[2, 4\]"),
        ({"lora_A." + MIDDLE.format(1): (5, 4), "lora_B." + MIDDLE.format(1): (8, 5)}, "rank 5, not 1 to 4"),
        ({"lora_A." + MIDDLE.format(1): (0, 4), "lora_B." + MIDDLE.format(1): (8, 0)}, "rank 0, not 1 to 4"),
        ({"lora_A.pooler.dense": (2, 4), "lora_B.pooler.dense": (4, 2)}, "not tensors of this base"),
        (sparse([0, 32], 2), "indices are from 0 to 31 and strictly increase"),
        (sparse([-1, 3], 2), "indices are from 0"),
        (sparse([3, 3], 2), "strictly increase"),
        (sparse([0, 1], 3), r"sparse_value\.\S+ is \[3\], not \[2\]"),
        (sparse([[0, 1]], 1), r"sparse_index\.\S+ is \[1, 2\], not \[1\]"),
        (sparse([0, 1], 2, dtype=np.float32), "is I32 and nothing else is"),
        (sparse([0], 1, module="pooler.dense"), "not tensors of this base"),
        ({"head.bias": np.ones(2, np.int32)}, "nothing else is: head.bias"),
        (adapter(QUERY.format(0)), "not tensors of this base"),
        (adapter(OUTPUT.format(0)) | {f"adapter_up.{OUTPUT.format(0)}.bias": None}, "missing"),
        (adapter(OUTPUT.format(0)) | {f"adapter_up.{OUTPUT.format(0)}.weight": (4, 3)}, "not"),
        (adapter(OUTPUT.format(0), size=5), "has 5 units, not 1 to 4"),
        ({f"scale.{QUERY.format(0)}": (4,)}, "not tensors of this base"),
        ({f"scale.{OUTPUT.format(0)}": (4,)}, r"is \[4\], not \[8\]"),
        ({f"output_scale.{OUTPUT.format(0)}": (8,)}, r"is \[8\], not \[4\]"),
        ({f"lora_xs.{OUTPUT.format(0)}": (5, 5)}, r"lora_xs\.\S+ has rank 5, not 1 to 4"),
        ({f"lora_xs.{OUTPUT.format(0)}": (3, 2)}, r"is \[3, 2\], not \[3, 3\]"),
        ({"lora_xs.pooler.dense": (2, 2)}, "not tensors of this base"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tensors, message):
    with pytest.raises(TensorMismatch, match=message):
        require_fit(tiny_delta.make_delta(tensors=with_tensors(**tensors)), SPEC)


def test_at_most_ten_offenders_are_named():
    many = {f"delta.x{i:02}": (1,) for i in range(30)}
    with pytest.raises(TensorMismatch) as caught:
        require_fit(tiny_delta.make_delta(tensors=with_tensors(**many)), SPEC)
    assert "delta.x09" in caught.value.detail
    assert "delta.x10" not in caught.value.detail
    assert caught.value.detail.endswith("and 20 more")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 17}, "max_length: 17 is over the base's 16"),
        ({"golden": {"input_ids": [[50]], "logits": [[0.0, 0.0]]}}, "a token is outside the base's 50"),
        ({"max_length": 4, "golden": {"input_ids": [[1] * 5], "logits": [[0.0, 0.0]]}}, "longer than max_length 4"),
    ],
)
def test_manifests_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(InvalidManifest, match=message):
        require_fit(tiny_delta.make_delta(**changes), SPEC)


def test_a_pooling_that_the_base_cannot_do_is_refused():
    with pytest.raises(InvalidManifest, match="this base has cls, mean, not pooler"):
        require_fit(tiny_delta.make_delta(pooling="pooler"), replace(SPEC, poolings=("cls", "mean")))


def test_a_delta_of_another_base_is_refused_even_under_its_name():
    base = {"name": "tiny", "model_type": "bert", "digest": "sha256:" + "cd" * 32}
    with pytest.raises(BaseMismatch, match=r"sha256:cdcdcdcdcdcd….*sha256:abababababab…"):
        require_fit(tiny_delta.make_delta(base=base), SPEC)


def test_a_delta_with_a_nan_is_refused():
    tensors = tiny_delta.tensors_for()
    tensors["head.weight"][1, 2] = np.nan
    with pytest.raises(NotFinite, match=r"not finite: head\.weight$"):
        require_fit(tiny_delta.make_delta(tensors=tensors), SPEC)
