"""Formats 1 and 2: each content has one of them, and what was a file before there were two has the digest it had."""

import hashlib
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.file.canonical import manifest_json
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps, loads
from onebert_store.file.manifest import parse_manifest
from tiny_delta import manifest_dict, tensors_for

# Written by the release that had format 1 alone.
DIGEST_OF_FORMAT_1 = "sha256:dd4f2e6624b84a383695261cddaeac2268626026d8abbb0cbccf50670dba7dd6"
TENSORS = {name: np.arange(one.size, dtype=np.float32).reshape(one.shape) for name, one in tensors_for().items()}
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
DECISIONS = st.fixed_dictionaries(
    {},
    optional={
        "activation": st.sampled_from(["softmax", "sigmoid"]),
        "temperature": st.floats(1e-3, 1e3) | st.integers(1, 1000),
        "thresholds": st.dictionaries(st.sampled_from(["no", "yes"]), NUMBERS | st.integers(0, 1), min_size=1),
        "positives": st.sampled_from([["no"], ["yes"]]),
        "abstain": st.fixed_dictionaries({"below": st.floats(0.01, 1)})
        | st.fixed_dictionaries({"energy": st.floats(-1e6, 1e6)}),
        "window": WINDOWS,
    },
).filter(lambda one: "thresholds" not in one or one["thresholds"].keys() >= set(one.get("positives", ())))


def test_what_has_no_decision_has_the_bytes_of_format_1() -> None:
    """The digest as it was when there was one format alone."""
    for manifest in (manifest_dict(), manifest_dict(decision=None)):
        assert Delta(parse_manifest(manifest), TENSORS).digest == DIGEST_OF_FORMAT_1


@given(DECISIONS)
def test_a_decision_survives_the_file_and_decides_the_format(decision) -> None:
    wanted = manifest_dict(format=2 if decision else 1, **({"decision": decision} if decision else {}))
    delta = Delta(parse_manifest(wanted), TENSORS)
    data = dumps(delta)
    again = loads(data)
    assert again.manifest == delta.manifest
    assert dumps(again) == data
    assert again.digest == delta.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    written = json.loads(manifest_json(again.manifest))
    assert written.get("decision", {}) == decision
    assert written["format"] == (2 if decision else 1)
    assert (again.digest == DIGEST_OF_FORMAT_1) == (not decision)
