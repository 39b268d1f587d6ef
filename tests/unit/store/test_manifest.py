"""The manifest made in Python, where values can be what no JSON text says."""

from dataclasses import replace

import numpy as np
import pytest

from onebert_store.errors import InvalidManifest
from onebert_store.file.delta import check
from onebert_store.file.manifest import parse_manifest
from tiny_delta import SPEC, make_delta, manifest_dict


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "a number is not finite"),
        (2**63, "an integer does not fit 64 bits"),
        (-(2**63), "an integer does not fit 64 bits"),
        ("\ud800", "half a surrogate pair"),
        ((1, 2), "tuple is not a JSON type"),
        ({1: 2}, "a key is not a string"),
        (np.float32(1), "float32 is not a JSON type"),
        (np.ones(2), "ndarray is not a JSON type"),
        (b"x", "bytes is not a JSON type"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [[0], {"b": x}]], ids=["flat", "nested"])
def test_provenance_is_plain_json(value, message, wrap):
    with pytest.raises(InvalidManifest, match=message):
        parse_manifest(manifest_dict(training={"a": wrap(value)}))


def test_provenance_that_is_plain_json_is_kept():
    training = {"a": [1, 2.5, None, True, "x", {"y": 2**63 - 1}], "b": -(2**63) + 1}
    assert parse_manifest(manifest_dict(training=training)).training == training


def test_a_manifest_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        parse_manifest(manifest_dict()).max_length = 3


def test_per_token_tasks_fit_every_base_and_have_golden_logits_for_every_token():
    golden = {"input_ids": [[1, 2, 3], [4]], "logits": [[0.5] * 6, [0.5] * 2]}
    for kind, labels in (("token", ["O", "B-x"]), ("span", ["start", "end"])):
        manifest = parse_manifest(manifest_dict(task_type=kind, labels=labels, pooling="none", golden=golden))
        assert manifest.per_token
        check(make_delta(task_type=kind, labels=labels, pooling="none"), replace(SPEC, poolings=("cls",)))
    assert not parse_manifest(manifest_dict()).per_token


def test_a_token_task_has_at_most_512_labels():
    labels = [f"B-{i}" for i in range(513)]
    parse_manifest(manifest_dict(task_type="token", pooling="none", labels=labels[:512]))
    with pytest.raises(InvalidManifest, match="at most 512 labels"):
        parse_manifest(manifest_dict(task_type="token", pooling="none", labels=labels))
