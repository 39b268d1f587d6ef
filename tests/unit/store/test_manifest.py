"""The manifest: values made in Python that no JSON text says; each content has one of formats 1, 2 and 3."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidManifest
from onebert_store.file.delta import Delta, manifest_json, require_fit
from onebert_store.file.format import dumps, loads
from onebert_store.file.manifest import parse_manifest
from tiny_delta import SPEC, make_delta, manifest_dict, tensors_for


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


def test_per_token_tasks_fit_every_base():
    golden = {"input_ids": [[1, 2, 3], [4]], "logits": [[0.5] * 6, [0.5] * 2]}
    for kind, labels in (("token", ["O", "B-x"]), ("span", ["start", "end"])):
        manifest = parse_manifest(manifest_dict(task_type=kind, labels=labels, pooling="none", golden=golden))
        assert manifest.per_token
        require_fit(make_delta(task_type=kind, labels=labels, pooling="none"), replace(SPEC, poolings=("cls",)))
    assert not parse_manifest(manifest_dict()).per_token


def test_a_token_task_has_at_most_512_labels():
    labels = [f"B-{i}" for i in range(513)]
    parse_manifest(manifest_dict(task_type="token", pooling="none", labels=labels[:512]))
    with pytest.raises(InvalidManifest, match="at most 512 labels"):
        parse_manifest(manifest_dict(task_type="token", pooling="none", labels=labels))


# Written by the release that had format 1 alone.
DIGEST_OF_FORMAT_1 = "sha256:dd4f2e6624b84a383695261cddaeac2268626026d8abbb0cbccf50670dba7dd6"
TENSORS = {
    name: np.arange(tensor.size, dtype=np.float32).reshape(tensor.shape) for name, tensor in tensors_for().items()
}
NUMBERS = st.floats(0, 1)
WINDOWS = st.integers(8, 16).flatmap(
    lambda tokens: st.fixed_dictionaries(
        {
            "tokens": st.just(tokens),
            "overlap": st.integers(0, tokens // 2),
            "reduction": st.sampled_from(["max", "mean"]),
        }
    )
)
DECISIONS = (
    st.fixed_dictionaries(
        {},
        optional={
            "activation": st.sampled_from(["softmax", "sigmoid"]),
            "temperature": st.floats(1e-3, 1e3) | st.integers(1, 1000),
            "thresholds": st.dictionaries(st.sampled_from(["no", "yes"]), NUMBERS | st.integers(0, 1), min_size=1),
            "positives": st.sampled_from([["no"], ["yes"]]),
            "abstain": st.fixed_dictionaries({"below": st.floats(0.01, 1)})
            | st.fixed_dictionaries({"energy": st.floats(-1e6, 1e6)}),
            "window": WINDOWS,
            "cut": st.sampled_from(["head", "ends", "abstain"]),
        },
    )
    .filter(lambda tensor: not tensor.keys() >= {"window", "cut"})
    .filter(
        lambda tensor: "thresholds" not in tensor or tensor["thresholds"].keys() >= set(tensor.get("positives", ()))
    )
)


def test_what_has_no_decision_has_the_bytes_of_format_1() -> None:
    """The digest as it was when there was one format alone."""
    for manifest in (manifest_dict(), manifest_dict(decision=None)):
        assert Delta(parse_manifest(manifest), TENSORS).digest == DIGEST_OF_FORMAT_1


@given(DECISIONS, st.sampled_from([None, {"activation": "gelu"}, {"activation": "relu"}]))
def test_a_decision_and_a_head_survive_the_file_and_decide_the_format(decision, head) -> None:
    number = 3 if head else 2 if decision else 1
    wanted = manifest_dict(format=number, head=head, **({"decision": decision} if decision else {}))
    delta = Delta(parse_manifest(wanted), TENSORS)
    data = dumps(delta)
    again = loads(data)
    assert again.manifest == delta.manifest
    assert dumps(again) == data
    assert again.digest == delta.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    written = json.loads(manifest_json(again.manifest))
    assert written.get("decision", {}) == decision
    assert (written["format"], written.get("head")) == (number, head)
    assert (again.digest == DIGEST_OF_FORMAT_1) == (number == 1)
