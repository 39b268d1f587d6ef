"""What a delta changes, against the same numbers computed whole."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onebert_store.file import changes as module
from onebert_store.file.changes import changes, difference
from tiny_delta import QUERY, tensors_for


def rms(numbers):
    return float(np.sqrt(np.square(numbers.astype(np.float64)).mean()))


@settings(deadline=None)
@given(
    out=st.integers(1, 40),
    r=st.integers(1, 40),
    columns=st.integers(1, 40),
    tile=st.sampled_from([3, 16, 1024]),
    dtype=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]),
)
def test_a_low_rank_change_is_that_of_the_product(out, r, columns, tile, dtype):
    rng = np.random.default_rng([out, r, columns])
    a, b = rng.normal(size=(r, columns)).astype(dtype), rng.normal(size=(out, r)).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_TILE", tile)
        (change,) = changes({"lora_A.layer.7.x": a, "lora_B.layer.7.x": b})
    assert (change.kind, change.name, change.layer, change.mean_abs) == ("low-rank", "layer.7.x", 7, None)
    assert change.rms == pytest.approx(rms(b.astype(np.float64) @ a.astype(np.float64)))
    assert change.norm == pytest.approx(np.linalg.norm(b.astype(np.float64) @ a.astype(np.float64)))


@pytest.mark.parametrize("size", [1, 5, 2**20, 2**20 + 1])
@pytest.mark.parametrize(
    ("prefix", "kind", "start"), [("delta.", "added", 0), ("scale.", "scale", 1), ("output_scale.", "output-scale", 1)]
)
def test_vectors_are_measured_whatever_their_length(size, prefix, kind, start):
    numbers = np.random.default_rng(size).normal(size=size).astype(np.float32)
    (change,) = changes({f"{prefix}embeddings.LayerNorm.bias": numbers})
    assert (change.kind, change.name, change.layer) == (kind, "embeddings.LayerNorm.bias", None)
    assert change.rms == pytest.approx(rms(numbers.astype(np.float64) - start))
    assert change.mean_abs == pytest.approx(float(np.abs(numbers.astype(np.float64) - start).mean()))


def test_heads_indices_and_halves_are_no_changes():
    whole = tensors_for()
    assert [change.kind for change in changes(whole)] == ["added", "added", "low-rank"]
    odd = {
        "lora_A.x": np.ones((2, 3), np.float32),
        "lora_B.y": np.ones((3, 2), np.float32),
        "lora_A.z": np.ones((2, 3), np.float32),
        "lora_B.z": np.ones((3, 4), np.float32),
        "sparse_index.x": np.ones(3, np.int32),
        "adapter_down.x.weight": np.ones((2, 3), np.float32),
        "nonsense": np.ones(3, np.float32),
    }
    assert changes(odd) == []


def test_products_of_the_largest_numbers_are_finite():
    big = np.full((2, 2), 3e38, np.float32)
    (change,) = changes({"lora_A.x": big, "lora_B.x": big})
    assert change.rms == pytest.approx(2 * float(big[0, 0]) ** 2)


def test_the_layer_is_the_number_in_the_name():
    names = [QUERY.format(11), "transformer.layer.3.ffn.lin1", "layer.0.x", "encoder.layers.3.x", "player.3.x", "x"]
    found = changes({f"delta.{name}": np.ones(2, np.float32) for name in names})
    assert [change.layer for change in found] == [11, 3, 0, 3, None, None]


SHAPE = (6, 5)


def whole(tensors):
    """What a delta adds to one vector, one factor and one matrix, computed whole."""
    vector = tensors.get("delta.layer.0.v", np.zeros(4))
    factor, of_output = (
        tensors.get(f"{name}.layer.0.x", np.ones(6)).astype(float) - 1 for name in ("scale", "output_scale")
    )
    core = np.zeros((3, 3))
    if (own := tensors.get("lora_xs.layer.0.x")) is not None:
        core[: len(own), : len(own)] = own
    matrix = np.zeros(SHAPE)
    if "lora_A.layer.0.x" in tensors:
        matrix += tensors["lora_B.layer.0.x"].astype(float) @ tensors["lora_A.layer.0.x"].astype(float)
    sparse = np.zeros(SHAPE[0] * SHAPE[1])
    if "sparse_index.layer.0.x" in tensors:
        sparse[tensors["sparse_index.layer.0.x"]] = tensors["sparse_value.layer.0.x"]
    return {
        "added": vector,
        "scale": factor,
        "output-scale": of_output,
        "core": core,
        "low-rank": matrix,
        "sparse": sparse,
    }


def some(seed, rank, kinds):
    rng = np.random.default_rng(seed)
    found = {
        "delta.layer.0.v": rng.normal(size=4).astype(np.float32),
        "scale.layer.0.x": rng.normal(size=6).astype(np.float16),
        "output_scale.layer.0.x": rng.normal(size=6).astype(np.float32),
        "lora_A.layer.0.x": rng.normal(size=(rank, SHAPE[1])).astype(np.float32),
        "lora_B.layer.0.x": rng.normal(size=(SHAPE[0], rank)).astype(ml_dtypes.bfloat16),
        "lora_xs.layer.0.x": rng.normal(size=(rank, rank)).astype(np.float32),
        "sparse_index.layer.0.x": np.sort(rng.choice(30, 4, replace=False)).astype(np.int32),
        "sparse_value.layer.0.x": rng.normal(size=4).astype(np.float32),
        "head.weight": rng.normal(size=(2, 5)).astype(np.float32),
    }
    return {name: tensor for name, tensor in found.items() if name.partition(".")[0].split("_")[0] in kinds}


KINDS = [
    {"delta", "lora", "sparse", "scale", "output", "head"},
    {"lora"},
    {"sparse", "delta"},
    {"scale", "head"},
    set(),
]


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_difference_of_two_deltas_is_that_of_what_they_add(one, other):
    left, right = some(1, 2, one), some(2, 3, other)
    found = {change.kind: change.norm for change in changes(difference(left, right))}
    before, after = whole(right), whole(left)
    expected = {kind: np.linalg.norm(after[kind] - before[kind]) for kind in after}
    assert {kind: found.get(kind, 0.0) for kind in expected} == pytest.approx(expected)
    assert all(norm == pytest.approx(0, abs=1e-6) for norm in changes_of_itself(left))


def changes_of_itself(tensors):
    return [change.norm for change in changes(difference(tensors, tensors))]
