"""What `onebert diff` says of two files, against the same numbers computed whole."""

import numpy as np
import pytest

from onebert_server.cli.compare.differences import by_symbol, norms
from tiny_delta import MIDDLE, SPEC, make_delta, tensors_for


def rms(numbers):
    return float(np.sqrt(np.square(numbers.astype(np.float64)).mean()))


def product(tensors, module):
    return tensors["lora_B." + module].astype(np.float64) @ tensors["lora_A." + module].astype(np.float64)


def test_low_rank_products_are_apart_by_their_difference():
    """The default method's matrices are such products; factors of equal products need not be equal."""
    module = MIDDLE.format(1)
    one, other = tensors_for(seed=1), tensors_for(seed=2)
    (found,) = (
        each
        for each in norms(make_delta(tensors=one), make_delta(tensors=other), SPEC.symbols)
        if each["symbol"] == "W_m2"
    )
    assert (found["kind"], found["layer"]) == ("low-rank", 1)
    assert found["a"] == pytest.approx(rms(product(one, module)))
    assert found["apart"] == pytest.approx(rms(product(one, module) - product(other, module)))
    turned = one | {"lora_A." + module: -one["lora_A." + module], "lora_B." + module: -one["lora_B." + module]}
    same = norms(make_delta(tensors=one), make_delta(tensors=turned), SPEC.symbols)
    assert [each["apart"] for each in same] == pytest.approx([0.0] * 3, abs=1e-6)
    assert {each["symbol"]: list(each["layers"]) for each in by_symbol(same)} == {"b_q": [0], "g_LN2": [1], "W_m2": [1]}


def test_what_one_version_alone_changes_is_apart_by_all_of_it():
    module = MIDDLE.format(1)
    without = {name: tensor for name, tensor in tensors_for().items() if not name.endswith(module)}
    found = {each["symbol"]: each for each in norms(make_delta(), make_delta(tensors=without), SPEC.symbols)}
    assert found["W_m2"]["b"] is None
    assert found["W_m2"]["apart"] == pytest.approx(found["W_m2"]["a"])
    assert found["b_q"]["apart"] == 0.0
